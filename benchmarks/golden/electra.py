"""Records statistics of the rows and masks that google-research/electra makes.

    python -m benchmarks.golden.electra ELECTRA

tests/batches/test_electra_parity.py compares ours with them.
"""

import random
import sys
import types
from collections import Counter

from benchmarks.golden.recipe import save_json

LENGTH = 64
# All sentences are equally long. Otherwise the original may put a sentence in A after B has
# begun, while our rows are always two spans of text.
SENTENCE_LENGTH = 7
DOCUMENTS = [1 + 7 * i % 40 for i in range(40)]
ROUNDS = 200
MASKED_ROWS = 20_000


def record_rows() -> dict[str, int]:
    """Returns the numbers of rows by (tokens of A, tokens of B): {"A,B": rows}."""
    import build_pretraining_dataset as original

    counts = Counter()

    class Builder(original.ExampleBuilder):
        def _make_tf_example(self, first_segment, second_segment):
            return len(first_segment), len(second_segment)

    tokenizer = types.SimpleNamespace(
        tokenize=str.split, convert_tokens_to_ids=lambda tokens: tokens
    )
    random.seed(0)
    for _ in range(ROUNDS):
        builder = Builder(tokenizer, LENGTH)
        for num_sentences in DOCUMENTS:
            for line in [*["x " * SENTENCE_LENGTH] * num_sentences, ""]:
                if row := builder.add_line(line):
                    counts["{},{}".format(*row)] += 1
    return dict(sorted(counts.items()))


def record_masks() -> dict[str, float]:
    """Returns counts and the share of [MASK] among the distinct chosen positions of rows."""
    import tensorflow.compat.v1 as tf

    # The original imports a package of TensorFlow 1 that is not needed here.
    sys.modules["tensorflow.contrib"] = types.SimpleNamespace(layers=None)
    from model import tokenization
    from pretrain import pretrain_data, pretrain_helpers

    tf.disable_eager_execution()
    vocab = {"[PAD]": 0, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    tokenization.FullTokenizer = lambda *args, **kwargs: types.SimpleNamespace(vocab=vocab)
    config = types.SimpleNamespace(
        max_predictions_per_seq=int((0.15 + 0.005) * LENGTH), vocab_file="", do_lower_case=True
    )
    ids = [[2, *range(5, 34), 3, *range(34, 62), 3] + [0] * 4] * MASKED_ROWS
    zeros = [[0] * config.max_predictions_per_seq] * MASKED_ROWS
    inputs = pretrain_data.Inputs(
        input_ids=tf.constant(ids, tf.int32),
        input_mask=tf.constant([[1] * 60 + [0] * 4] * MASKED_ROWS, tf.int32),
        segment_ids=tf.zeros([MASKED_ROWS, LENGTH], tf.int32),
        masked_lm_positions=tf.constant(zeros, tf.int32),
        masked_lm_ids=tf.constant(zeros, tf.int32),
        masked_lm_weights=tf.constant(zeros, tf.float32),
    )
    masked = pretrain_helpers.mask(config, inputs, 0.15)
    with tf.Session() as session:
        tf.set_random_seed(0)
        weights, positions, after = session.run(
            [masked.masked_lm_weights, masked.masked_lm_positions, masked.input_ids]
        )
    chosen = masks = 0
    for row, columns, weight in zip(after, positions, weights, strict=True):
        # A position that is drawn twice becomes [MASK] if either draw masks it.
        drawn = Counter(columns[weight > 0].tolist())
        once = [column for column, times in drawn.items() if times == 1]
        chosen += len(once)
        masks += sum(row[column] == vocab["[MASK]"] for column in once)
    return {
        "predictions": float(weights.sum(axis=1).mean()),
        "chosen": chosen,
        "mask_tokens": int(masks),
    }


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    save_json("electra.json", {"rows": record_rows(), "masks": record_masks()})
