"""Single segments: text of one document, without next-sentence prediction."""

from typing import NamedTuple

import numpy as np

from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.windows import (
    Span,
    WindowedRows,
    gather_sentences,
    join_spans,
    target_lengths,
)


class SegmentPlan(NamedTuple):
    """N rows, each one span of the token store, already truncated."""

    start_N: np.ndarray  # int64, the token position of the first token
    length_N: np.ndarray  # int32, at least 1


class SegmentRows(WindowedRows):
    """`[CLS] text [SEP]`, where the text is consecutive sentences of one document.

    Sentences are gathered up to a target length, which is shorter for a fraction
    `short_seq_prob` of the documents. Text that is too long loses tokens at random from the
    front or the back, as BERT's pairs do.
    """

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return self._chunks(block, rng)[0].size

    def plan_block(self, block: Block, rng: np.random.Generator) -> SegmentPlan:
        first_N, end_N = self._chunks(block, rng)
        start_N = block.sentence_starts[first_N]
        length_N = block.sentence_starts[end_N] - start_N
        kept_N = np.minimum(length_N, self._max_num_tokens)
        start_N += rng.binomial(length_N - kept_N, 0.5)
        return SegmentPlan(start_N, kept_N.astype(np.int32))

    def lengths(self, plan: SegmentPlan) -> np.ndarray:
        return plan.length_N + self.tokenizer.template.num_special(is_pair=False)

    def assemble(self, plan: SegmentPlan) -> dict[str, np.ndarray]:
        span = Span(plan.start_N, plan.length_N)
        return join_spans(self.store, self.tokenizer, self.spec.max_seq_length, span)

    @property
    def _max_num_tokens(self) -> int:
        num_special = self.tokenizer.template.num_special(is_pair=False)
        return self.spec.max_seq_length - num_special

    def _chunks(self, block: Block, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first sentence of each chunk and the one after its last."""
        target_D = target_lengths(
            rng, block.num_documents, self._max_num_tokens, self.spec.short_seq_prob
        )
        _, first_N, end_N = gather_sentences(block, target_D, lambda first, end: (end, ()))
        return first_N, end_N


class WholeSentenceRows(SegmentRows):
    """Segments that are never cut.

    A segment that would be too long loses its last sentence, which begins the next one. A
    sentence that is too long for a row of its own is left out, and no segment reaches across
    it. (SpanBERT's program, `BlockDataset` in no_nsp_span_bert_dataset.py, also loses the
    sentences before such a sentence if that ends its document.)
    """

    def _chunks(self, block: Block, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        max_tokens = self._max_num_tokens
        starts = block.sentence_starts

        def divide(first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray]]:
            kept_end = end - (starts[end] - starts[first] > max_tokens)
            return np.maximum(kept_end, first + 1), (kept_end,)

        target_D = target_lengths(rng, block.num_documents, max_tokens, self.spec.short_seq_prob)
        _, first_N, _, end_N = gather_sentences(block, target_D, divide)
        is_kept_N = end_N > first_N
        return first_N[is_kept_N], end_N[is_kept_N]


class FittedDocumentRows(SegmentRows):
    """Whole documents, to be packed (`batches.packing`); no token is left out.

    A document that is too long for a row is cut into pieces that fill a row each, and a rest, even
    inside sentences. (Ettin's split_dataset_into_chunks.py cuts in this way, but may leave out a
    short rest.)
    """

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return int(self._num_pieces(block).sum())

    def plan_block(self, block: Block, rng: np.random.Generator) -> SegmentPlan:
        number_D = self._num_pieces(block)
        start_D, end_D = self._bounds(block)
        place_N = np.arange(number_D.sum()) - np.repeat(np.cumsum(number_D) - number_D, number_D)
        start_N = np.repeat(start_D, number_D) + place_N * self._max_num_tokens
        length_N = np.minimum(np.repeat(end_D, number_D) - start_N, self._max_num_tokens)
        return SegmentPlan(start_N, length_N.astype(np.int32))

    def _num_pieces(self, block: Block) -> np.ndarray:
        start_D, end_D = self._bounds(block)
        return -(-(end_D - start_D) // self._max_num_tokens)

    def _bounds(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first token of each document and the one after its last."""
        bounds = block.sentence_starts[block.document_starts]
        return bounds[:-1], bounds[1:]
