"""Pairs of consecutive text for ELECTRA: A is about half of the row, and B is the rest.

The rules are those of `ExampleBuilder` in google-research/electra's
build_pretraining_dataset.py, with two differences. Once B has begun, every sentence goes to B;
the original puts a later sentence in A if A has room. Rows consist of the store's sentences; those
of the original consist of lines.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.windows import Span, WindowedRows, gather_text

# The probability that a row has no B.
_SINGLE_PROB = 0.1
# The smallest target length of a short row.
_MIN_TARGET = 5


class HalvesPlan(NamedTuple):
    """N rows, each two spans of the token store, already truncated."""

    a_start_N: np.ndarray  # int64, the token position of A's first token
    a_length_N: np.ndarray  # int32, at least 1
    b_start_N: np.ndarray  # int64
    b_length_N: np.ndarray  # int32, 0 for a row without B


class HalvesRows(WindowedRows):
    """`[CLS] A [SEP] B [SEP]`, where B follows A, or `[CLS] A [SEP]`.

    Sentences of a document are gathered up to a target of `max_seq_length` tokens. For a fraction
    `short_seq_prob` of the rows, the target is uniform from 5 to `max_seq_length`. A takes the
    sentences that end before half of the target, at least one, and with probability 1/2 one more.
    What does not fit is cut off at the end.
    """

    is_pair: ClassVar[bool] = True
    longest_sentence: ClassVar[float] = 0.5

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return self._chunks(block, rng)[0].size

    def plan_block(self, block: Block, rng: np.random.Generator) -> HalvesPlan:
        template, length = self.tokenizer.template, self.spec.max_seq_length
        first_N, middle_N, end_N = self._chunks(block, rng)
        a_room = length - template.num_special(is_pair=False)
        a_length_N = np.minimum(middle_N - first_N, a_room)
        b_room_N = length - template.num_special(is_pair=True) - a_length_N
        b_length_N = np.minimum(end_N - middle_N, np.maximum(b_room_N, 0))
        return HalvesPlan(
            first_N, a_length_N.astype(np.int32), middle_N, b_length_N.astype(np.int32)
        )

    def lengths(self, plan: HalvesPlan) -> np.ndarray:
        single, pair = (
            self.tokenizer.template.num_special(is_pair=is_pair) for is_pair in (False, True)
        )
        return plan.a_length_N + plan.b_length_N + np.where(plan.b_length_N, pair, single)

    def assemble(self, plan: HalvesPlan) -> dict[str, np.ndarray]:
        a, b = Span(plan.a_start_N, plan.a_length_N), Span(plan.b_start_N, plan.b_length_N)
        return self.join(a, b)

    def _chunks(
        self, block: Block, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns each row's first token of A, first token of B, and the token after B.

        In rows without B, the last two are equal.
        """
        length, starts = self.spec.max_seq_length, block.sentence_starts
        num_special = length - self._max_num_tokens

        def divide(first: np.ndarray, end: np.ndarray):
            short, size, one_more, single = rng.random((4, first.size))
            target = np.where(
                short < self.spec.short_seq_prob,
                _MIN_TARGET + (size * (length - _MIN_TARGET + 1)).astype(np.int64),
                length,
            )
            short_end = starts[np.searchsorted(starts, np.minimum(first + target, end))]
            end = np.minimum(end, short_end)
            half = first + (target - num_special) // 2
            first_sentence = np.searchsorted(starts, first, side="right") - 1
            middle = np.maximum(np.searchsorted(starts, half) - 1, first_sentence + 1)
            middle += (starts[middle] < half) & (one_more < 0.5)
            middle = starts[np.minimum(middle, np.searchsorted(starts, end))]
            middle = np.where(single < _SINGLE_PROB, end, np.minimum(middle, end))
            return end, (middle, end)

        target_D = np.full(block.num_documents, length)
        _, first_N, _, middle_N, end_N = gather_text(block, target_D, divide)
        return first_N, middle_N, end_N
