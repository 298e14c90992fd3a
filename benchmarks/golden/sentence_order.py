"""Records counts of the pairs that ALBERT's program makes of fixed sentences.

    python -m benchmarks.golden.sentence_order ALBERT

tests/batches/rows/test_original_order.py compares ours with these. Only the program's function for
the pairs of a document runs here, without masks.
"""

import random
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.golden.fairseq import documents
from benchmarks.golden.recipe import Histograms, by_statistic, save_json
from benchmarks.golden.spans import load_albert

NUM_RUNS, MAX_SEQ_LENGTH = 30, 64
KINDS = ("in_order", "swapped", "random")
BIN = 4


def summarize(pairs: Iterable[tuple[int, int, int, int, int]]) -> dict[str, list[int]]:
    """Returns histograms over the pairs of one run.

    Args:
      pairs: The number of A's first token in the corpus, A's length, the same for B, and the
        label.
    """
    ends = np.cumsum([sum(lengths) for lengths in documents()])
    bins = MAX_SEQ_LENGTH // BIN
    sizes = {"kind_and_label": 6}
    for kind in KINDS:
        sizes |= {f"length_of_{side}_if_{kind}": bins for side in ("a", "b", "pair")}
    histograms = Histograms(sizes)
    for a_start, a_length, b_start, b_length, label in pairs:
        a_document, b_document = np.searchsorted(ends, [a_start, b_start], side="right")
        kind = 2 if a_document != b_document else int(b_start < a_start)
        histograms.count("kind_and_label", 2 * kind + label)
        lengths = {"a": a_length, "b": b_length, "pair": a_length + b_length}
        for side, length in lengths.items():
            histograms.count(f"length_of_{side}_if_{KINDS[kind]}", length // BIN)
    return histograms.as_lists()


def pairs_of_albert(program, texts: list[list[list[int]]], seed: int):
    rng = random.Random(seed)
    for index in range(len(texts)):
        instances = program.create_instances_from_document(
            texts, index, MAX_SEQ_LENGTH, 0.1, 0.15, 20, [], rng
        )
        for instance in instances:
            sep = instance.tokens.index("[SEP]")
            a, b = instance.tokens[1:sep], instance.tokens[sep + 1 : -1]
            yield a[0], len(a), b[0], len(b), int(instance.is_random_next)


def main(folder: Path) -> None:
    program = load_albert(folder)
    program.FLAGS = SimpleNamespace(random_next_sentence=False)
    program.create_masked_lm_predictions = lambda tokens, *_: (tokens, [], [], [])
    texts, start = [], 0
    for lengths in documents():
        texts.append([])
        for length in lengths:
            texts[-1].append(list(range(start, start + length)))
            start += length
    runs = [summarize(pairs_of_albert(program, texts, seed)) for seed in range(NUM_RUNS)]
    save_json("sentence_order.json", by_statistic(runs))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
