"""Turns tagged sentences into rows, with a label on the first piece of each word."""

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tokenizers import Tokenizer, TokenRow

UNSCORED = -1


class TaggedRows(TokenRows):
    """Rows of `[CLS] pieces of the words [SEP]`; see `TokenRows`.

    A sentence that is too long is cut into windows that overlap by half or more, each starting
    at a word. A word has its label only in the window with the most context on its shorter
    side.

    Args:
      sentences: The words of each sentence; a word without pieces becomes [UNK].
      labels: The label of every word of all sentences; None if they are not known.
      tags: The tags of each sentence; None if they are not known or not needed.

    Attributes:
      words, tags: As given.
      word_row_W, word_position_W: The row and the position of the label of each word of all
        sentences.
    """

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        labels: Sequence[int] | None,
        tokenizer: Tokenizer,
        max_seq_length: int,
        tags: Sequence[Sequence[str]] | None = None,
    ):
        self.words, self.tags = sentences, tags
        offset = len(tokenizer.template.before)
        room = max_seq_length - tokenizer.template.num_special(is_pair=False)
        rows: list[int] = []
        positions: list[int] = []

        def windows() -> Iterator[TokenRow]:
            number = 0
            for words in sentences:
                pieces, first_pieces_W = _pieces(words, tokenizer)
                starts_R = _window_starts(first_pieces_W, room)
                stops_R = np.minimum(starts_R + room, len(pieces))
                best_W = _best_window(first_pieces_W, starts_R, stops_R)
                rows.extend((number + best_W).tolist())
                positions.extend((offset + first_pieces_W - starts_R[best_W]).tolist())
                number += len(starts_R)
                for start, stop in zip(starts_R, stops_R, strict=True):
                    yield tokenizer.join(pieces[start:stop])

        super().__init__(windows(), tokenizer, max_seq_length)
        self.word_row_W = np.array(rows, np.int64)
        self.word_position_W = np.array(positions, np.int64)
        self._labels_W = None if labels is None else np.array(labels, np.int32)
        # Words are in the order of their rows.
        self._word_starts = np.searchsorted(self.word_row_W, np.arange(len(self) + 1))

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        batch = super().take(indices)
        if self._labels_W is not None:
            batch["labels"] = np.full(batch["input_ids"].shape, UNSCORED, np.int32)
            for n, i in enumerate(indices):
                words = slice(*self._word_starts[[i, i + 1]])
                batch["labels"][n, self.word_position_W[words]] = self._labels_W[words]
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        for words in self.words:
            yield from words


def _pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pieces of a sentence, and the index of the first piece of each word."""
    unknown = np.array([tokenizer.unk_id], np.int32)
    # In some vocabularies a piece includes the space before it.
    spaced = [words[0], *(f" {word}" for word in words[1:])]
    ids = [word if word.size else unknown for word in tokenizer.encode_batch(spaced)]
    ends = np.cumsum([len(word) for word in ids])
    return np.concatenate(ids), np.concatenate([[0], ends[:-1]])


def _window_starts(first_pieces_W: np.ndarray, room: int) -> np.ndarray:
    """Returns the pieces at which windows start. Each word's first piece is in a window."""
    starts = [0]
    while starts[-1] + room <= first_pieces_W[-1]:
        # The last word within half a window, or else the next word.
        current = np.searchsorted(first_pieces_W, starts[-1])
        middle = np.searchsorted(first_pieces_W, starts[-1] + room // 2, side="right") - 1
        starts.append(int(first_pieces_W[max(current + 1, middle)]))
    return np.array(starts)


def _best_window(
    first_pieces_W: np.ndarray, starts_R: np.ndarray, stops_R: np.ndarray
) -> np.ndarray:
    """Returns the window for each word; the first of equally good ones."""
    left_WxR = first_pieces_W[:, None] - starts_R
    right_WxR = stops_R - 1 - first_pieces_W[:, None]
    return np.argmax(np.minimum(left_WxR, right_WxR), axis=1)
