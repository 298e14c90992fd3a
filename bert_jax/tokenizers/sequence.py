"""Builds the token sequences of a model: one text or two with special tokens."""

import dataclasses
from typing import NamedTuple

import numpy as np


class TokenRow(NamedTuple):
    """One sequence of tokens, not padded.

    Attributes:
      input_ids_L: int32.
      num_first: The number of tokens in the first segment.
      num_cut: The number of text tokens that did not fit.
      num_left_out: The number of first tokens that are not pooled.
    """

    input_ids_L: np.ndarray
    num_first: int
    num_cut: int = 0
    num_left_out: int = 0


@dataclasses.dataclass(frozen=True)
class SequenceTemplate:
    """The positions of special tokens: `before A after`, or `before A between B after`.

    BERT has [CLS] before, [SEP] between and [SEP] after.

    Attributes:
      before, between, after: The ids of special tokens.
      num_segments: 2 if everything after `between` has token type 1; 1 if all tokens have
        type 0.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    num_segments: int = 2

    def num_special(self, *, is_pair: bool) -> int:
        return len(self.before) + len(self.between) * is_pair + len(self.after)

    def second_offset(self, a_length: int) -> int:
        """Returns the position of B's first token after an A of this length."""
        return len(self.before) + a_length + len(self.between)

    def join(
        self, a: np.ndarray, b: np.ndarray | None = None, *, max_length: int | None = None
    ) -> TokenRow:
        """Adds the special tokens to one text or two.

        Args:
          a: The ids of the text, int32.
          b: The ids of the second text of a pair.
          max_length: The largest number of tokens in the sequence. A single text is cut at its
            end, a pair to its `truncated_lengths`. None means no limit.
        """
        num_text = len(a) if b is None else len(a) + len(b)
        room = num_text
        if max_length is not None:
            room = max_length - self.num_special(is_pair=b is not None)
        if b is None:
            parts = [self.before, a[:room], self.after]
        else:
            a_length, b_length = truncated_lengths(len(a), len(b), room)
            parts = [self.before, a[:a_length], self.between, b[:b_length], self.after]
        input_ids_L = np.concatenate(parts, dtype=np.int32)
        is_split = b is not None and self.num_segments == 2
        num_first = self.second_offset(len(parts[1])) if is_split else len(input_ids_L)
        return TokenRow(input_ids_L, num_first, max(0, num_text - room))


def truncated_lengths(
    a_length: np.ndarray | int, b_length: np.ndarray | int, max_num_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lengths of pairs after tokens are removed, one by one, from the longer side.

    Together they then have at most `max_num_tokens`. If both sides are equally long, B loses a
    token, as in google-research/bert's run_classifier.py. In closed form: first the longer side is
    cut to the length of the shorter, then both lose tokens in turn, B first.
    """
    excess = np.maximum(a_length + b_length - max_num_tokens, 0)
    a_over = np.minimum(np.maximum(a_length - b_length, 0), excess)
    b_over = np.minimum(np.maximum(b_length - a_length, 0), excess)
    rest = excess - a_over - b_over
    return a_length - a_over - rest // 2, b_length - b_over - (rest + 1) // 2
