"""Records the rows and masks that fairseq's RoBERTa code makes of fixed sentences.

    python -m benchmarks.golden.fairseq FAIRSEQ

tests/batches/test_fairseq_parity.py compares ours with these. Only the two modules that make rows
and masks are loaded. The module of the rows is Cython; its declarations are removed.
"""

import re
import sys
from pathlib import Path

import numpy as np

from benchmarks.golden.recipe import save_json, stub

MAX_SEQ_LENGTH = 64
MASK_LENGTH, NUM_MASKED_ROWS = 101, 20_000
VOCAB_SIZE, NUM_SPECIALS = 60, 4  # <s> <pad> </s> <unk>; <mask> is the last entry.
BEGIN, PAD, END, MASK = 0, 1, 2, VOCAB_SIZE - 1


def documents() -> list[list[int]]:
    """Returns the lengths of the sentences of each document; some are too long for a row."""
    rng = np.random.default_rng(4)
    lengths = [rng.integers(1, 25, rng.integers(1, 12)).tolist() for _ in range(400)]
    for index in range(0, 400, 40):
        lengths[index][0] = int(rng.integers(60, 70))
    return lengths


def masked_rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows of text with some </s>, and which entries of the vocabulary begin a word."""
    rng = np.random.default_rng(5)
    ids = rng.integers(NUM_SPECIALS, VOCAB_SIZE - 1, (NUM_MASKED_ROWS, MASK_LENGTH))
    begins_word = rng.random(VOCAB_SIZE) < 0.6
    begins_word[:NUM_SPECIALS] = True
    # A word begins after </s>, as in real text.
    first = NUM_SPECIALS + int(np.flatnonzero(begins_word[NUM_SPECIALS:])[0])
    ids[:, 1::10], ids[:, ::10] = first, END
    ids[:, 0] = BEGIN
    return ids, begins_word


def summarize(ids, shown, chosen, begins_word) -> dict[str, list[int]]:
    """Returns histograms of counts over masked rows."""
    word = np.cumsum(begins_word[ids], axis=1)
    words = [len(np.unique(w[c])) for w, c in zip(word, chosen, strict=True)]
    same, is_mask = shown == ids, shown == MASK
    outcome = np.where(is_mask, 0, np.where(same, 1, 2))
    pairs = chosen[:, 1:] & chosen[:, :-1] & (np.diff(word) == 0)
    agree = (is_mask[:, 1:] == is_mask[:, :-1])[pairs]
    return {
        "tokens": np.bincount(chosen.sum(axis=1), minlength=MASK_LENGTH).tolist(),
        "words": np.bincount(words, minlength=MASK_LENGTH).tolist(),
        "position": chosen.sum(axis=0).tolist(),
        "outcome": np.bincount(outcome[chosen], minlength=3).tolist(),
        "random_id": np.bincount(shown[chosen & (outcome == 2)], minlength=VOCAB_SIZE).tolist(),
        "same_coin_in_a_word": np.bincount(agree.astype(int), minlength=2).tolist(),
        "changed_but_not_chosen": [int((~same & ~chosen).sum())],
    }


class Vocabulary:
    """The part of fairseq's Dictionary that MaskTokensDataset uses."""

    nspecial = NUM_SPECIALS

    def __len__(self):
        return VOCAB_SIZE


def load_masks(folder: Path) -> type:
    """Returns fairseq's MaskTokensDataset."""
    stub("fairseq")
    replaced = {"Dictionary": object, "data_utils": None, "LRUCacheDataset": object}
    replaced["BaseWrapperDataset"] = type("BaseWrapperDataset", (), {})
    stub("fairseq.data", folder / "fairseq/data", **replaced)
    from fairseq.data.mask_tokens_dataset import MaskTokensDataset

    return MaskTokensDataset


def load_rows(folder: Path):
    """Returns fairseq's _get_slice_indices_fast as plain Python."""
    text = (folder / "fairseq/data/token_block_utils_fast.pyx").read_text()
    text = text[: text.index("cpdef np.ndarray[DTYPE_t, ndim=2] _get_block_to_dataset_index")]
    for pattern, plain in (
        (r"^(cimport|ctypedef|from libc|@cython).*", ""),
        (r"np\.ndarray\[[^]]*\] |<\w+> |\b(str|int|list) (?=\w+[,)])", ""),
        (r"^cp?def ", "def "),
        (r"^( +)cdef (?:[^=\n]* )?(\w+ = )", r"\1\2"),
        (r"^ +cdef .*", ""),
    ):
        text = re.sub(pattern, plain, text, flags=re.MULTILINE)
    names = {}
    exec(text, names)
    return names["_get_slice_indices_fast"]


def main(folder: Path) -> None:
    import torch

    slices = load_rows(folder)
    sizes = []
    for lengths in documents():
        sizes += [length + 1 for length in lengths] + [1]
    sizes = np.array(sizes[:-1], np.int64)  # There is no empty line after the last document.
    golden = {}
    for mode in ("complete", "complete_doc"):
        golden[mode] = slices(sizes, mode, MAX_SEQ_LENGTH - 1, 1).tolist()

    dataset_class = load_masks(folder)
    ids, begins_word = masked_rows()
    for name, words in (("tokens", None), ("words", torch.tensor(begins_word.astype(np.uint8)))):
        source, target = (
            dataset_class(
                [torch.from_numpy(row) for row in ids],
                Vocabulary(),
                PAD,
                MASK,
                return_masked_tokens=is_target,
                mask_whole_words=words,
            )
            for is_target in (False, True)
        )
        rows = range(NUM_MASKED_ROWS)
        shown = np.stack([source[row].numpy() for row in rows])
        chosen = np.stack([target[row].numpy() for row in rows]) != PAD
        golden[name] = summarize(ids, shown, chosen, begins_word)
    save_json("fairseq.json", golden)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
