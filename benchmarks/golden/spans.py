"""Records counts of the masks that SpanBERT's and ALBERT's programs draw for a fixed corpus.

    python -m benchmarks.golden.spans SPANBERT ALBERT

tests/batches/corruption/test_original_spans.py compares ours with these. Only the functions that
form rows and mask them run here. They import PyTorch without needing it.
"""

import functools
import hashlib
import random
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.golden.original_pairs import VOCABULARY, corpus
from benchmarks.golden.recipe import Histograms, by_statistic, load_module, save_json, stub
from bert_jax import tokenizers

NUM_RUNS = 30
# The limit on predictions is ALBERT's; it cuts the longest rows.
MAX_SEQ_LENGTH, ALBERT_PREDICTIONS = 128, 18
MASKED_LM_PROB = 0.15
MAX_SPAN_TARGETS = 15
# Random ids are counted by the frequency of the token, with one bin for each doubling.
FREQUENCY_BINS = 16

# The statistics, and the bins of each histogram.
STATISTICS = {
    "predictions_below_the_rule": 12,
    "run_tokens": 41,
    "run_words": 41,
    "position": 20,
    "touches_an_end": 2,
    # Whether a run begins or ends inside a word.
    "cuts_a_word": 2,
    "piece": 2,
    # [MASK], the token itself, another token.
    "outcome": 3,
    # Whether two neighbors in a run have the same outcome.
    "neighbours_agree": 2,
    "random_frequency": FREQUENCY_BINS,
    "targets_of_a_row": 40,
    "target_offset": 16,
}


def make_tokenizer():
    return tokenizers.from_file(
        "wordpiece", VOCABULARY, lowercase=True, max_input_chars_per_word=200
    )


def tokenized_corpus(tokenizer) -> list[list[list[int]]]:
    """Returns the sentences of each document as ids."""
    return [[list(ids) for ids in tokenizer.encode_batch(sentences)] for sentences in corpus()]


def flat_tokens(documents: list[list[list[int]]]) -> np.ndarray:
    return np.array([i for document in documents for ids in document for i in ids])


def summarize(rows: Iterable[dict[str, np.ndarray]], documents, tokenizer) -> dict[str, list[int]]:
    """Returns histograms over the masked tokens, or runs of them, of one program run.

    Args:
      rows: Each has `original` and `masked` int [L] (with special tokens), `positions` of the
        masked tokens (ascending), `rule` (how many there should be), and where the program has
        boundary targets, `offsets` int: the place in the span of each masked token that has one.
    """
    counts_V = np.bincount(flat_tokens(documents), minlength=tokenizer.vocab_size)
    frequency_V = np.minimum(np.log2(counts_V + 1).astype(int), FREQUENCY_BINS - 1)
    is_start_V = np.asarray(tokenizer.is_word_start_V)
    specials = (tokenizer.cls_id, tokenizer.sep_id)
    histograms = Histograms(STATISTICS)
    count = histograms.count
    for row in rows:
        original, at = np.asarray(row["original"]), np.asarray(row["positions"])
        count("predictions_below_the_rule", row["rule"] - at.size)
        shown = np.asarray(row["masked"])[at]
        outcome = np.where(shown == tokenizer.mask_id, 0, np.where(shown == original[at], 1, 2))
        count("outcome", outcome)
        count("random_frequency", frequency_V[shown[outcome == 2]])
        count("position", 20 * at // len(original))
        count("piece", ~is_start_V[original[at]])
        touching = np.diff(at) == 1
        count("neighbours_agree", (outcome[1:] == outcome[:-1])[touching])
        # The first and the last token of each run.
        first, last = at[np.append(True, ~touching)], at[np.append(~touching, True)]
        num_starts = np.append(0, np.cumsum(is_start_V[original]))
        count("run_tokens", last - first + 1)
        count("run_words", num_starts[last + 1] - num_starts[first])
        is_special = np.isin(original, specials)
        count("touches_an_end", is_special[first - 1] | is_special[last + 1])
        begins_inside = ~is_start_V[original[first]] & ~is_special[first - 1]
        count("cuts_a_word", begins_inside | ~is_start_V[original[last + 1]])
        count("targets_of_a_row", len(row["offsets"]))
        count("target_offset", row["offsets"])
    return histograms.as_lists()


def masked_rows(tokens: np.ndarray, segments: Sequence[Sequence[int]], tokenizer):
    """Returns rows `[CLS] text [SEP]` of every fourth segment."""
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    return [[cls, *tokens[start:stop].tolist(), sep] for start, stop in segments[::4]]


def span_rows(rows: Sequence[list[int]], tokenizer, mask):
    """Yields rows of SpanBERT's program; `mask` is the method of a masking scheme."""
    for ids in rows:
        text = np.array(ids[1:-1])
        masked, target, pairs = mask(text)
        at = np.flatnonzero(target != tokenizer.pad_id)
        # Each entry has the left and the right neighbor and then the targets, with padding.
        offsets = [i for pair in pairs for i, x in enumerate(pair[2:]) if x != tokenizer.pad_id]
        for left, right, *_ in pairs:
            assert not np.isin([left, right], at).any()
        yield {
            "original": ids,
            "masked": [tokenizer.cls_id, *masked, tokenizer.sep_id],
            "positions": at + 1,
            "rule": span_rule(len(ids)),
            "offsets": offsets,
        }


def span_rule(length: int) -> int:
    return int(np.ceil((length - 2) * MASKED_LM_PROB))


def albert_rule(length: int) -> int:
    return min(ALBERT_PREDICTIONS, max(1, round(length * MASKED_LM_PROB)))


def albert_rows(rows: Sequence[list[int]], tokenizer, vocabulary: list[str], mask):
    """Yields rows of ALBERT's program; `mask` is create_masked_lm_predictions with its options."""
    number = {token: i for i, token in enumerate(vocabulary)}
    for ids in rows:
        masked, positions, _, _ = mask([vocabulary[i] for i in ids])
        yield {
            "original": ids,
            "masked": [number[token] for token in masked],
            "positions": positions,
            "rule": albert_rule(len(ids)),
            "offsets": [],
        }


def _spanbert(folder: Path) -> tuple[types.ModuleType, types.ModuleType]:
    """Returns SpanBERT's modules for masking and for rows."""
    for name in ("torch", "torch.utils", "fairseq"):
        stub(name)
    stub("torch.utils.data", Dataset=object)
    stub("fairseq.data", data_utils=None, FairseqDataset=object)
    data = folder / "pretraining" / "fairseq" / "data"
    masking = load_module(data / "masking.py", "fairseq.data.masking")
    rows = load_module(
        data / "no_nsp_span_bert_dataset.py", "fairseq.data.no_nsp_span_bert_dataset"
    )
    return masking, rows


def load_albert(folder: Path) -> types.ModuleType:
    stub("albert", tokenization=None)
    return load_module(folder / "create_pretraining_data.py", "albert.create_pretraining_data")


def main(spanbert: Path, albert: Path) -> None:
    tokenizer = make_tokenizer()
    documents = tokenized_corpus(tokenizer)
    tokens = flat_tokens(documents)
    masking, rows = _spanbert(spanbert)
    # The program prints its first rows and its lengths.
    vars(masking)["print"] = vars(rows)["print"] = lambda *args: None
    sizes = [size for document in documents for size in [*map(len, document), 0]]
    ids = {name: getattr(tokenizer, f"{name}_id") for name in ("pad", "cls", "mask", "sep")}
    segments = rows.BlockDataset(tokens, sizes, MAX_SEQ_LENGTH, **ids).sents
    # The options are those of the command in pretraining/README.md.
    options = SimpleNamespace(
        mask_ratio=MASKED_LM_PROB,
        max_pair_targets=MAX_SPAN_TARGETS,
        span_lower=1,
        span_upper=10,
        geometric_p=0.2,
        tagged_anchor_prob=0.0,
        replacement_method="span",
        endpoints="external",
        return_only_spans=False,
    )
    is_start = np.asarray(tokenizer.is_word_start_V)
    words = masking.ParagraphInfo(SimpleNamespace(is_start_word=lambda i: bool(is_start[i])))
    scheme = masking.PairWithSpanMaskingScheme(
        options, tokens, tokenizer.pad_id, tokenizer.mask_id, words
    )
    program = load_albert(albert)
    program.FLAGS = SimpleNamespace(
        do_whole_word_mask=True,
        spm_model_file=None,
        ngram=3,
        favor_shorter_ngram=True,
        do_permutation=False,
    )
    vocabulary = VOCABULARY.read_text(encoding="utf-8").rstrip("\n").split("\n")
    masked = masked_rows(tokens, segments, tokenizer)

    golden = {
        "corpus": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
        "segments": [[int(start), int(stop)] for start, stop in segments],
        "spans": [],
        "ngrams": [],
    }
    for seed in range(NUM_RUNS):
        np.random.seed(seed)
        own = span_rows(masked, tokenizer, scheme.mask)
        golden["spans"].append(summarize(own, documents, tokenizer))
        mask = functools.partial(
            program.create_masked_lm_predictions,
            masked_lm_prob=MASKED_LM_PROB,
            max_predictions_per_seq=ALBERT_PREDICTIONS,
            vocab_words=vocabulary,
            rng=random.Random(seed),
        )
        own = albert_rows(masked, tokenizer, vocabulary, mask)
        golden["ngrams"].append(summarize(own, documents, tokenizer))
    for group in ("spans", "ngrams"):
        golden[group] = by_statistic(golden[group])
    save_json("spans.json", golden)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
