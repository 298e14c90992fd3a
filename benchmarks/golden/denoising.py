"""Records counts of what fairseq's DenoisingDataset, BART's corruption, does to fixed rows.

    python -m benchmarks.golden.denoising FAIRSEQ

tests/batches/corruption/test_original_denoising.py compares ours with these. Only the module of the
corruption is loaded.

Every token of a row has its own id, so that a corrupted row shows which tokens are left, and in
which order. Random tokens come from a vocabulary so large that hardly any is a token of the row.
"""

import contextlib
import sys
import types
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.golden.recipe import Histograms, save_json, stub

NUM_SPECIALS = 4  # <s> <pad> </s> <unk>; <mask> is the last entry.
BEGIN, PAD, END = range(3)
VOCAB_SIZE = 1_000_000
MASK = VOCAB_SIZE - 1
MASK_RATIO, RANDOM_RATIO = 0.3, 0.1
# Settings by name: words of a row, the mean length of a span, the fraction of sentences permuted,
# and the number of rows. No number of words is a multiple of 10; see corruption/denoising.py.
SETTINGS = {
    "short": (7, 3.0, 0.0, 20_000),
    "lambda_3": (68, 3.0, 0.0, 20_000),
    "lambda_3.5": (68, 3.5, 0.0, 20_000),
    "long": (253, 3.0, 0.0, 2_000),
    "permuted": (68, 3.0, 1.0, 10_000),
    "half_permuted": (68, 3.0, 0.5, 10_000),
}
# The statistics, and the bins of each histogram.
STATISTICS = {
    "hidden_words": 100,
    # Whether some tokens of a word are left and others are not.
    "cut_words": 2,
    "replacements": 60,
    "row_length": 50,
    "words_of_a_gap": 25,
    "replacements_of_a_gap": 6,
    "inserted": 12,
    "random": 12,
    "random_of_inserted": 12,
    "position": 20,
    "random_id": 20,
    "fixed_sentences": 10,
    "place_of_the_first": 10,
}


def make_row(num_words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the ids of a row `<s> text </s>`, and which tokens begin a word and a sentence.

    Words have one to four tokens, and sentences have 2 to 13 words; the last one may be cut.
    """
    rng = np.random.default_rng(num_words)
    begins_word = np.zeros((num_words, 4), bool)
    begins_word[:, 0] = True
    is_token = np.arange(4) < rng.choice([1, 1, 1, 2, 3, 4], num_words)[:, None]
    begins_sentence = np.zeros_like(begins_word)
    first_words = np.cumsum(rng.integers(2, 14, num_words)) - 2
    begins_sentence[[0, *first_words[first_words < num_words - 1]], 0] = True
    ids = NUM_SPECIALS + np.arange(is_token.sum())
    return (
        np.concatenate([[BEGIN], ids, [END]]),
        np.concatenate([[False], begins_word[is_token], [False]]),
        np.concatenate([[False], begins_sentence[is_token], [False]]),
    )


def summarize(rows: Iterable[np.ndarray], num_words: int, permuted: float) -> dict[str, list[int]]:
    """Returns histograms over corrupted copies of `make_row(num_words)`.

    Some are only of rows whose sentences are permuted, and others only of rows without this.
    """
    ids, begins_word, begins_sentence = make_row(num_words)
    word_of, sentence_of = np.cumsum(begins_word) - 1, np.cumsum(begins_sentence) - 1
    num_sentences = sentence_of[-1] + 1
    histograms = Histograms(STATISTICS)
    count = histograms.count
    for row in rows:
        assert row[0] == BEGIN and row[-1] == END and len(row) <= len(ids)
        text = row[1:-1]
        column = text - NUM_SPECIALS + 1
        is_left = (column > 0) & (column < len(ids) - 1)
        word, sentence = word_of[column[is_left]], sentence_of[column[is_left]]
        is_shown = np.bincount(word, minlength=num_words) > 0
        hidden = np.flatnonzero(~is_shown)
        count("cut_words", is_shown[word_of[1:-1]].sum() != is_left.sum())
        count("hidden_words", hidden.size)
        count("replacements", (~is_left).sum())
        count("row_length", 50 * len(row) // (len(ids) + 1))
        count("random", (text[~is_left] != MASK).sum())
        count("random_id", 20 * text[~is_left & (text != MASK)] // VOCAB_SIZE)
        if permuted:
            # Sentences of which a token is left, in the order of the row.
            order = sentence[np.concatenate([[True], np.diff(sentence) != 0])]
            if len(order) == num_sentences:
                count("fixed_sentences", (order == np.arange(num_sentences)).sum())
                count("place_of_the_first", np.flatnonzero(order == 0))
            continue
        count("position", 20 * hidden // num_words)
        # A gap is the place between two neighbors of the tokens that are left.
        gap = np.cumsum(np.concatenate([[0], is_left]))[:-1][~is_left]
        ends = np.concatenate([[-1], word, [num_words]])
        in_gap = np.maximum(np.diff(ends) - 1, 0)
        num_replacements = np.bincount(gap, minlength=len(in_gap))
        count("words_of_a_gap", in_gap[in_gap > 0])
        count("replacements_of_a_gap", num_replacements[in_gap > 0])
        is_inserted = in_gap[gap] == 0
        count("inserted", is_inserted.sum())
        count("random_of_inserted", (text[~is_left][is_inserted] != MASK).sum())
    return {name: counts for name, counts in histograms.as_lists().items() if any(counts)}


class FullStops:
    """Equals the tokens that end a sentence. fairseq compares with the id of one full stop."""

    def __init__(self, ids: np.ndarray):
        self._ids = ids

    def __eq__(self, tokens):
        import torch

        return torch.isin(tokens, torch.from_numpy(self._ids))


class Vocabulary:
    """The part of fairseq's Dictionary that DenoisingDataset uses."""

    def __init__(self, full_stops: FullStops):
        self._full_stops = full_stops

    def __len__(self):
        return VOCAB_SIZE

    def index(self, symbol: str) -> FullStops:
        assert symbol == "13"  # "." in GPT-2's vocabulary
        return self._full_stops

    def bos(self) -> int:
        return BEGIN

    def eos(self) -> int:
        return END


def load(folder: Path) -> type:
    """Returns fairseq's DenoisingDataset."""
    stub("fairseq")
    data_utils = types.SimpleNamespace(numpy_seed=lambda *_: contextlib.nullcontext())
    stub("fairseq.data", folder / "fairseq/data", FairseqDataset=object, data_utils=data_utils)
    from fairseq.data.denoising_dataset import DenoisingDataset

    return DenoisingDataset


def corrupted_copies(dataset, ids: np.ndarray, num_rows: int):
    """Yields rows that fairseq corrupts."""
    import torch

    for _ in range(num_rows):
        dataset.dataset = [torch.from_numpy(ids.copy())]  # fairseq changes the row in place.
        yield dataset[0]["source"].numpy()


def main(folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    dataset_class, golden = load(folder), {}
    for name, (num_words, poisson_lambda, permuted, num_rows) in SETTINGS.items():
        ids, begins_word, begins_sentence = make_row(num_words)
        is_word_start_V = torch.ones(VOCAB_SIZE, dtype=torch.uint8)
        is_word_start_V[ids] = torch.from_numpy(begins_word.astype(np.uint8))
        dataset = dataset_class(
            [],
            [len(ids)],
            Vocabulary(FullStops(ids[np.flatnonzero(begins_sentence)[1:] - 1])),
            MASK,
            is_word_start_V,
            shuffle=False,
            seed=0,
            mask=MASK_RATIO,
            mask_random=RANDOM_RATIO,
            insert=0.0,
            rotate=0.0,
            permute_sentences=permuted,
            bpe="gpt2",
            replace_length=1,
            mask_length="span-poisson",
            poisson_lambda=poisson_lambda,
        )
        rows = corrupted_copies(dataset, ids, num_rows)
        golden[name] = summarize(rows, num_words, permuted)
    save_json("denoising.json", golden)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
