"""Single segments: text of one document, without next-sentence prediction."""

from typing import NamedTuple

import numpy as np

from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.windows import Span, WindowedRows, gather_text


class SegmentPlan(NamedTuple):
    """N rows, each one span of the token store, already truncated."""

    start_N: np.ndarray  # int64, the token position of the first token
    length_N: np.ndarray  # int32, at least 1


class SegmentRows(WindowedRows):
    """`[CLS] text [SEP]`, where the text is from one document.

    Sentences are gathered up to a target length, which is shorter for a fraction `short_seq_prob`
    of the documents. If the last one does not fit, the next row begins with the rest of it. If
    `max_sentence_tokens` is 0, text that is too long loses tokens at random from the front or the
    back instead, as BERT's pairs do.
    """

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return self._spans(block, rng)[0].size

    def plan_block(self, block: Block, rng: np.random.Generator) -> SegmentPlan:
        start_N, length_N = self._spans(block, rng)
        kept_N = np.minimum(length_N, self._max_num_tokens)
        start_N += rng.binomial(length_N - kept_N, 0.5)
        return SegmentPlan(start_N, kept_N.astype(np.int32))

    def lengths(self, plan: SegmentPlan) -> np.ndarray:
        return plan.length_N + self.tokenizer.template.num_special(is_pair=False)

    def assemble(self, plan: SegmentPlan) -> dict[str, np.ndarray]:
        span = Span(plan.start_N, plan.length_N)
        return self.join(span)

    def _spans(self, block: Block, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns the first token of each row's text, and its length before truncation."""
        target_D = self._target_lengths(block, rng)
        most = self._max_num_tokens if self.spec.max_sentence_tokens else 0
        _, start_N, end_N = gather_text(block, target_D, lambda first, end: (end, ()), most)
        return start_N, end_N - start_N


class WholeSentenceRows(SegmentRows):
    """Segments that are never cut.

    A segment that would be too long loses its last sentence, which begins the next one. If
    `max_sentence_tokens` is 0, a sentence that is too long for a row of its own is left out, and no
    segment reaches across it. (SpanBERT's program, `BlockDataset` in no_nsp_span_bert_dataset.py,
    also loses the sentences before such a sentence if that ends its document.)
    """

    def _spans(self, block: Block, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        max_tokens = self._max_num_tokens
        starts = block.sentence_starts

        def divide(first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray]]:
            last = np.searchsorted(starts, end) - 1
            kept_end = np.where(end - first > max_tokens, starts[last], end)
            return np.where(kept_end > first, kept_end, end), (kept_end,)

        target_D = self._target_lengths(block, rng)
        _, start_N, _, end_N = gather_text(block, target_D, divide)
        is_kept_N = end_N > start_N
        return start_N[is_kept_N], (end_N - start_N)[is_kept_N]


class FittedDocumentRows(SegmentRows):
    """Whole documents, to be packed (`batches.packing`); no token is left out.

    A document that is too long for a row is cut into pieces that fill a row each, and a rest, even
    inside sentences. (Ettin's split_dataset_into_chunks.py cuts in this way, but may leave out a
    short rest.)
    """

    def _spans(self, block: Block, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        bounds = block.sentence_starts[block.document_starts]
        number_D = -(-np.diff(bounds) // self._max_num_tokens)
        place_N = np.arange(number_D.sum()) - np.repeat(np.cumsum(number_D) - number_D, number_D)
        start_N = np.repeat(bounds[:-1], number_D) + place_N * self._max_num_tokens
        left_N = np.repeat(bounds[1:], number_D) - start_N
        return start_N, np.minimum(left_N, self._max_num_tokens)
