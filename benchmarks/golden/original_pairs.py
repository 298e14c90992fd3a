"""Records counts of the pairs and masks that google-research/bert makes of a fixed corpus.

    python -m benchmarks.golden.original_pairs corpus > ../bert/corpus.txt
    for seed in $(seq 30); do for group in single whole_word; do
        python ../bert/create_pretraining_data.py --input_file=../bert/corpus.txt \\
            --vocab_file=tests/golden/original_pairs_vocab.txt --max_seq_length=128 \\
            --max_predictions_per_seq=20 --dupe_factor=3 --random_seed=$seed \\
            --do_whole_word_mask=$([ $group = whole_word ] && echo true || echo false) \\
            --output_file=../bert/${group}_$seed.tfrecord
    done; done
    python -m benchmarks.golden.original_pairs summary ../bert/*.tfrecord

tests/batches/test_original_parity.py compares our pipeline with these. The vocabulary has 2,000
entries and was trained on corpus.txt with `bert_jax.tokenizers.training.train`.
"""

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.golden.recipe import Histograms, by_statistic, save_json
from bert_jax.text.sources import built_in_files
from tests.golden.inputs import FOLDER

VOCABULARY = FOLDER / "original_pairs_vocab.txt"
NUM_DOCUMENTS = 60
DUPE_FACTOR = 3
MAX_SEQ_LENGTH, MAX_PREDICTIONS = 128, 20
# The prefixes of the names of statistics of masks.
MASKING = ("predictions", "masked")
# The size of the bins for lengths and positions, in tokens.
BIN = 4


def corpus() -> list[list[str]]:
    """Returns the documents as sentences: the oldest addresses, cut to 1 to 119 sentences.

    This file has its own splitter, so that a new version of a library cannot change the corpus.
    """
    documents = []
    for i, path in enumerate(built_in_files()[:NUM_DOCUMENTS]):
        text = " ".join(path.read_text(encoding="utf-8").split())
        sentences = re.split(r"(?<=[.!?;]) ", text)
        documents.append(sentences[: 1 + 2 * (37 * i % NUM_DOCUMENTS)])
    return documents


def corpus_text(documents: list[list[str]]) -> str:
    """Returns the corpus with one sentence per line and a blank line between documents."""
    return "\n".join("".join(f"{sentence}\n" for sentence in document) for document in documents)


def fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def summarize(batches: Iterable[dict[str, np.ndarray]]) -> dict[str, list[int]]:
    """Returns histograms over the instances, or over their masked tokens, of one run.

    Args:
      batches: Arrays with the names and shapes of training batches.
    """
    vocabulary = VOCABULARY.read_text(encoding="utf-8").split("\n")
    mask_id = vocabulary.index("[MASK]")
    is_piece = np.array([token.startswith("##") for token in vocabulary])
    bins = MAX_SEQ_LENGTH // BIN
    sizes = {
        "length_of_a": bins,
        "length_of_b": bins,
        "length_of_a_before_random_b": bins,
        "length_of_random_b": bins,
        "length_of_a_if_full": bins,
        "length_of_a_if_full_and_random": bins,
        "total_length": bins,
        "is_full": 2,
        "is_random_next": 2,
        "predictions": MAX_PREDICTIONS + 1,
        "predictions_less_the_rule": 3,
        "masked_position": bins,
        "masked_fraction_of_length": 20,
        # [MASK], the token itself, another token.
        "masked_outcome": 3,
        # The first piece of a word, or a later one.
        "masked_piece": 2,
    }
    histograms = Histograms(sizes)
    count = histograms.count
    for batch in batches:
        total = batch["attention_mask"].sum(axis=1)
        # Without [CLS] and both [SEP].
        b_length = batch["token_type_ids"].sum(axis=1) - 1
        a_length = total - b_length - 3
        is_random = batch["next_sentence_labels"].reshape(-1) == 1
        count("length_of_a", a_length // BIN)
        count("length_of_b", b_length // BIN)
        count("length_of_a_before_random_b", a_length[is_random] // BIN)
        count("length_of_random_b", b_length[is_random] // BIN)
        is_full = total == MAX_SEQ_LENGTH
        # Documents with a short target vary most from run to run; these statistics exclude them.
        count("length_of_a_if_full", a_length[is_full] // BIN)
        count("length_of_a_if_full_and_random", a_length[is_full & is_random] // BIN)
        count("total_length", (total - 1) // BIN)
        count("is_full", is_full)
        count("is_random_next", is_random)

        real = batch["masked_lm_weights"] > 0
        predictions = real.sum(axis=1)
        count("predictions", predictions)
        rule = np.minimum(MAX_PREDICTIONS, np.maximum(1, np.rint(0.15 * total)))
        count("predictions_less_the_rule", np.clip(predictions - rule + 1, 0, 2))
        positions = batch["masked_lm_positions"]
        count("masked_position", positions[real] // BIN)
        count("masked_fraction_of_length", (20 * positions // total[:, None])[real])
        shown = np.take_along_axis(batch["input_ids"], positions, axis=1)[real]
        same = shown == batch["masked_lm_ids"][real]
        count("masked_piece", is_piece[batch["masked_lm_ids"][real]])
        count("masked_outcome", np.where(shown == mask_id, 0, np.where(same, 1, 2)))
    return histograms.as_lists()


def read_records(path: str) -> Iterable[dict[str, np.ndarray]]:
    """Yields the batches in a file of the original program."""
    import tensorflow as tf

    def feature(dtype, *shape):
        return tf.io.FixedLenFeature(shape, dtype)

    features = {
        "input_ids": feature(tf.int64, MAX_SEQ_LENGTH),
        "input_mask": feature(tf.int64, MAX_SEQ_LENGTH),
        "segment_ids": feature(tf.int64, MAX_SEQ_LENGTH),
        "masked_lm_positions": feature(tf.int64, MAX_PREDICTIONS),
        "masked_lm_ids": feature(tf.int64, MAX_PREDICTIONS),
        "masked_lm_weights": feature(tf.float32, MAX_PREDICTIONS),
        "next_sentence_labels": feature(tf.int64, 1),
    }
    for records in tf.data.TFRecordDataset([path]).batch(1000):
        batch = {k: v.numpy() for k, v in tf.io.parse_example(records, features).items()}
        batch["attention_mask"] = batch.pop("input_mask")
        batch["token_type_ids"] = batch.pop("segment_ids")
        yield batch


def main(verb: str, *paths: str) -> None:
    text = corpus_text(corpus())
    if verb == "corpus":
        sys.stdout.write(text)
        return
    golden = {"corpus": fingerprint(text)}
    for group in ("single", "whole_word"):
        here = [path for path in paths if Path(path).name.startswith(group)]
        statistics = by_statistic([summarize(read_records(path)) for path in here])
        # The pairs do not depend on the masking of words.
        is_recorded = MASKING if group == "whole_word" else ""
        golden[group] = {k: v for k, v in statistics.items() if k.startswith(is_recorded)}
    save_json("original_pairs.json", golden)


if __name__ == "__main__":
    main(*sys.argv[1:])
