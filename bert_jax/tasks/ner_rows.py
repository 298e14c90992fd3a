"""Sentences of words as rows, a label on the first piece of each word."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax.tasks.ragged import Ragged, padded
from bert_jax.tokenizers import Tokenizer

UNSCORED = -1


class TaggedRows:
    """See `bert_jax.tasks.task.Rows`: [CLS] pieces of the words [SEP].

    A sentence that is too long is cut into windows that overlap by half or more, each from the
    start of a word on. A word has its label in one of them only: where the smaller of what is
    left and right of it is largest.

    Args:
      sentences: The words of each; one that has no piece becomes [UNK].
      labels: The label of each word, int, by sentence; None: they are not known.
      tokenizer: That of the model.
      max_seq_length: Tokens of a row.

    Attributes:
      word_row_W, word_position_W: Where the label of each word, of all sentences one after the
        other, is: row and position.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        labels: Sequence[Sequence[int]] | None,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ):
        self._sentences, self._length = sentences, max_seq_length
        self._cls, self._sep = tokenizer.cls_id, tokenizer.sep_id
        self._pad = tokenizer.pad_id
        rows: list[int] = []
        positions: list[int] = []

        def windows() -> Iterator[np.ndarray]:
            number = 0
            for words in sentences:
                pieces, first_pieces = _pieces(words, tokenizer)
                starts, stops = _windows(first_pieces, len(pieces), max_seq_length - 2)
                best = _best_window(first_pieces, starts, stops)
                rows.extend((number + best).tolist())
                positions.extend((1 + first_pieces - starts[best]).tolist())
                number += len(starts)
                yield from (pieces[a:b] for a, b in zip(starts, stops, strict=True))

        self._ids = Ragged.of(windows())
        self.word_row_W = np.array(rows, np.int64)
        self.word_position_W = np.array(positions, np.int64)
        self._labels_W = None if labels is None else np.array([*_flat(labels)], np.int32)
        # Words are in the order of their rows.
        self._word_starts = np.searchsorted(self.word_row_W, np.arange(len(self) + 1))

    def __len__(self) -> int:
        return self._ids.num_rows

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `bert_jax.tasks.task.Rows`; without labels where they are not known."""
        rows = [[self._cls, *self._ids.row(int(i)).tolist(), self._sep] for i in indices]
        batch = {
            "input_ids": padded(rows, self._length, self._pad),
            "token_type_ids": np.zeros((len(rows), self._length), np.int32),
            "attention_mask": padded([np.ones(len(row)) for row in rows], self._length),
        }
        if self._labels_W is not None:
            batch["labels"] = np.full((len(rows), self._length), UNSCORED, np.int32)
            for n, i in enumerate(indices):
                words = slice(*self._word_starts[[i, i + 1]])
                batch["labels"][n, self.word_position_W[words]] = self._labels_W[words]
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        for words in self._sentences:
            yield from words


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of a sentence, and the index of each word's first."""
    unknown = np.array([tokenizer.unk_id], np.int32)
    ids = [word if word.size else unknown for word in tokenizer.encode_batch(words)]
    ends = np.cumsum([len(word) for word in ids])
    return np.concatenate(ids), np.concatenate([[0], ends[:-1]])


def _windows(first_pieces_W: np.ndarray, total: int, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Starts and stops, in pieces. All words have their first piece in a window."""
    starts = [0]
    while starts[-1] + room <= first_pieces_W[-1]:
        # The last word within half a window; the next one if that is where this one starts.
        here = np.searchsorted(first_pieces_W, starts[-1])
        middle = np.searchsorted(first_pieces_W, starts[-1] + room // 2, side="right") - 1
        starts.append(int(first_pieces_W[max(here + 1, middle)]))
    starts_R = np.array(starts)
    return starts_R, np.minimum(starts_R + room, total)


def _best_window(
    first_pieces_W: np.ndarray, starts_R: np.ndarray, stops_R: np.ndarray
) -> np.ndarray:
    """The window of each word; of equally good ones the first."""
    left_WxR = first_pieces_W[:, None] - starts_R
    right_WxR = stops_R - 1 - first_pieces_W[:, None]
    return np.argmax(np.minimum(left_WxR, right_WxR), axis=1)


def _flat(rows: Iterable[Iterable[int]]) -> Iterator[int]:
    for row in rows:
        yield from row
