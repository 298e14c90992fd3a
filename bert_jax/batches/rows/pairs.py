"""Sentence pairs, labeled by how B continues A.

The rules are those of `create_instances_from_document` and `truncate_seq_pair` in
google-research/bert's create_pretraining_data.py, with one difference: a random B always comes
from another document if there is one. The original tries ten times and then takes its own document.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from bert_jax.base.batch import (
    ENCODER_FIELDS,
    NEXT_SENTENCE_FIELDS,
    SENTENCE_ORDER_FIELDS,
    THREE_WAY_FIELDS,
    BatchFields,
)
from bert_jax.batches.rows.blocks import Block, Pool
from bert_jax.batches.rows.windows import Span, WindowedRows, gather_text
from bert_jax.tokenizers.sequence import truncated_lengths


class PairPlan(NamedTuple):
    """N rows, each two spans of the token store, already truncated."""

    a_start_N: np.ndarray  # int64, the token position of A's first token
    a_length_N: np.ndarray  # int32, at least 1
    b_start_N: np.ndarray  # int64
    b_length_N: np.ndarray  # int32, at least 1
    is_random_N: np.ndarray  # bool: B does not follow A in the text
    is_swapped_N: np.ndarray  # bool: A follows B


class Chunks(NamedTuple):
    """N pairs before B is drawn and before truncation; tokens count within the store."""

    document_N: np.ndarray  # counts within the block
    a_start_N: np.ndarray  # first token of A
    end_N: np.ndarray  # one past the chunk's last token; B ends here if it follows A
    a_end_N: np.ndarray  # one past the last token of A
    is_random_N: np.ndarray  # bool; if true, the next chunk begins at a_end
    is_swapped_N: np.ndarray  # bool; if true, A and B are swapped


class PairRows(WindowedRows):
    """`[CLS] A [SEP] B [SEP]`, where B follows A or is random.

    A random B begins at any sentence of another document, or of A's own if there is no other. If
    the text of a pair is a single sentence, B is always random.

    Attributes:
      label: The field of the labels: 0 in order, 1 swapped, `random_label` if B is random.
      random_label: See `label`.
      random_prob: The probability that B is random, among pairs of two or more sentences.
      swapped_prob: The probability that A and B of such a pair are swapped.
    """

    fields: ClassVar[BatchFields] = {**ENCODER_FIELDS, **NEXT_SENTENCE_FIELDS}
    is_pair: ClassVar[bool] = True
    longest_sentence: ClassVar[float] = 0.75
    label: ClassVar[str] = "next_sentence_labels"
    random_prob: ClassVar[float] = 0.5
    swapped_prob: ClassVar[float] = 0.0
    random_label: ClassVar[int] = 1

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return self._chunks(block, rng)[0].document_N.size

    def plan_block(self, block: Block, rng: np.random.Generator) -> PairPlan:
        chunks, target_N = self._chunks(block, rng)
        a_start_N, b_start_N = chunks.a_start_N, chunks.a_end_N
        a_length_N = b_start_N - a_start_N
        b_length_N = chunks.end_N - b_start_N

        is_random = chunks.is_random_N
        own_R = chunks.document_N[is_random] + block.first_in_pool
        b_start_N[is_random], b_length_N[is_random] = random_spans(
            rng, block.pool, own_R, (target_N - a_length_N)[is_random]
        )

        is_swapped = chunks.is_swapped_N
        for a_N, b_N in ((a_start_N, b_start_N), (a_length_N, b_length_N)):
            a_N[is_swapped], b_N[is_swapped] = b_N[is_swapped], a_N[is_swapped]

        a_kept_N, b_kept_N = truncated_lengths(a_length_N, b_length_N, self._max_num_tokens)
        # Every token is removed from the front or the back with equal probability.
        a_start_N += rng.binomial(a_length_N - a_kept_N, 0.5)
        b_start_N += rng.binomial(b_length_N - b_kept_N, 0.5)
        return PairPlan(
            a_start_N,
            a_kept_N.astype(np.int32),
            b_start_N,
            b_kept_N.astype(np.int32),
            is_random,
            is_swapped,
        )

    def lengths(self, plan: PairPlan) -> np.ndarray:
        num_special = self.tokenizer.template.num_special(is_pair=True)
        return plan.a_length_N + plan.b_length_N + num_special

    def assemble(self, plan: PairPlan) -> dict[str, np.ndarray]:
        a, b = Span(plan.a_start_N, plan.a_length_N), Span(plan.b_start_N, plan.b_length_N)
        batch = self.join(a, b)
        label_N = plan.is_random_N * np.int32(self.random_label) + plan.is_swapped_N
        return batch | {self.label: label_N}

    def _chunks(self, block: Block, rng: np.random.Generator) -> tuple[Chunks, np.ndarray]:
        """Returns the block's chunks and the target length of each."""
        target_D = self._target_lengths(block, rng)
        chunks = chunk_documents(rng, block, target_D, self.random_prob, self.swapped_prob)
        return chunks, target_D[chunks.document_N]


class OrderedPairRows(PairRows):
    """Pairs whose A and B are swapped half the time, for ALBERT's sentence order prediction.

    Pairs with a random B have the label of swapped pairs, as in google-research/albert's
    create_pretraining_data.py.
    """

    fields: ClassVar[BatchFields] = {**ENCODER_FIELDS, **SENTENCE_ORDER_FIELDS}
    label: ClassVar[str] = "sentence_order_labels"
    random_prob: ClassVar[float] = 0.0
    swapped_prob: ClassVar[float] = 0.5


class ThreeWayPairRows(PairRows):
    """Pairs in order, swapped, and with a random B: a third each, as in StructBERT and HerBERT.

    See the sentence structural objective of StructBERT (Wang et al., 2019, section 2.2.2).
    """

    fields: ClassVar[BatchFields] = {**ENCODER_FIELDS, **THREE_WAY_FIELDS}
    label: ClassVar[str] = "sentence_order_labels"
    random_prob: ClassVar[float] = 1 / 3
    swapped_prob: ClassVar[float] = 1 / 3
    random_label: ClassVar[int] = 2


def chunk_documents(
    rng: np.random.Generator,
    block: Block,
    target_D: np.ndarray,
    random_prob: float = 0.5,
    swapped_prob: float = 0.0,
) -> Chunks:
    """Divides the documents of a block into pairs. Random Bs are drawn, and pairs cut, later."""
    starts = block.sentence_starts

    def divide(first: np.ndarray, end: np.ndarray):
        split, coin = rng.random((2, first.size))
        first_sentence = np.searchsorted(starts, first, side="right") - 1
        count = np.searchsorted(starts, end) - first_sentence
        # A chunk of one sentence is all A. Otherwise A takes 1 to count - 1 sentences.
        a_sentences = 1 + (split * (count - 1)).astype(np.int64)
        a_end = np.minimum(starts[first_sentence + a_sentences], end)
        is_random = (count == 1) | (coin < random_prob)
        is_swapped = ~is_random & (coin < random_prob + swapped_prob)
        # The next chunk begins with the sentences that a random B displaced.
        return np.where(is_random, a_end, end), (a_end, is_random, is_swapped)

    return Chunks(*gather_text(block, target_D, divide))


def random_spans(
    rng: np.random.Generator, pool: Pool, own_R: np.ndarray, target_R: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws spans that begin at a random sentence of another document, if there is one.

    Args:
      pool: The documents to draw from.
      own_R: The indices in `pool` of the documents to avoid.
      target_R: The number of tokens wanted. At least one sentence is taken.

    Returns:
      The first token and the length of each span.
    """
    which_R, where_R = rng.random((2, own_R.size))
    if pool.num_documents == 1:
        document_R = own_R
    else:
        document_R = (which_R * (pool.num_documents - 1)).astype(np.int64)
        document_R += document_R >= own_R  # uniform over the other documents
    first_R, stop_R = pool.first_D[document_R], pool.stop_D[document_R]
    first_R = first_R + (where_R * (stop_R - first_R)).astype(np.int64)
    start_R = pool.sentence_starts[first_R]
    end_R = np.searchsorted(pool.sentence_starts, start_R + target_R)
    end_R = np.minimum(np.maximum(end_R, first_R + 1), stop_R)
    return start_R, pool.sentence_starts[end_R] - start_R
