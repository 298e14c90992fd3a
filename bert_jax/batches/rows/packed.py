"""Rows filled with whole sentences, each followed by [SEP].

The rules are RoBERTa's: `_get_slice_indices_fast` in fairseq's token_block_utils_fast.pyx, with
the modes `complete` (FULL-SENTENCES) and `complete_doc` (DOC-SENTENCES). There are two differences:
a sentence that is too long for a row is divided, or loses its end if `max_sentence_tokens` is 0
(fairseq makes the row too long), and no row holds only the [SEP] that ends a document.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.windows import WindowedRows


class PackedPlan(NamedTuple):
    """N rows, each one span of the token store; [SEP] follows each of its sentences."""

    start_N: np.ndarray  # int64, the token position of the first token
    length_N: np.ndarray  # int64, the number of tokens of text, at least 1
    width_N: np.ndarray  # int64, the number of tokens in the row, with special ones
    is_sep_NxW: np.ndarray  # uint8, one bit for each position: whether it has [SEP]


class FullSentenceRows(WindowedRows):
    """`[CLS] sentence [SEP] sentence [SEP] ...`, with as many sentences as fit.

    A row continues with the next document; a second [SEP] ends each document. Rows do not cross
    into the next block of documents, because blocks are planned independently. No row is
    shortened: `short_seq_prob` is not used.
    """

    # Two sentences have a [SEP] each, as in a pair.
    is_pair: ClassVar[bool] = True
    crosses_documents: ClassVar[bool] = True

    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        return len(self._spans(block)[0])

    def plan_block(self, block: Block, rng: np.random.Generator) -> PackedPlan:
        start_N, length_N, opens_N = self._spans(block)
        width, num_before = self.spec.max_seq_length, len(self.tokenizer.template.before)
        num_rows, end_N = len(start_N), start_N + length_N
        # T sentences: the position of each in its row, and the [SEP]s after it.
        first_N = np.searchsorted(block.sentence_starts, start_N, side="right") - 1
        size_N = np.searchsorted(block.sentence_starts, end_N, side="left") - first_N
        row_T = np.repeat(np.arange(num_rows), size_N)
        last_N = np.cumsum(size_N) - 1
        sentence_T = np.arange(size_N.sum()) + (first_N + size_N - 1 - last_N)[row_T]
        end_T = np.minimum(block.sentence_starts[sentence_T + 1], end_N[row_T])
        num_seps_T = np.ones(len(row_T), np.int64)
        if self.crosses_documents:
            stop_T = np.searchsorted(block.document_starts, sentence_T + 1)
            num_seps_T += block.document_starts[stop_T] == sentence_T + 1
        first_column_N = num_before + opens_N
        seps_before_T = np.cumsum(num_seps_T) - num_seps_T
        seps_before_T -= seps_before_T[last_N - size_N + 1][row_T]
        column_T = (first_column_N - start_N)[row_T] + end_T + seps_before_T
        # The [SEP] that ends a document may lie beyond the row; the next row then begins with it.
        width_N = np.minimum(column_T[last_N] + num_seps_T[last_N], width)

        is_sep_NxL = np.zeros((num_rows, width), bool)
        is_sep_NxL[row_T, column_T] = True
        ends_document_T = (num_seps_T == 2) & (column_T + 1 < width)
        is_sep_NxL[row_T[ends_document_T], column_T[ends_document_T] + 1] = True
        is_sep_NxL[opens_N, num_before] = True
        return PackedPlan(start_N, length_N, width_N, np.packbits(is_sep_NxL, axis=1))

    def assemble(self, plan: PackedPlan) -> dict[str, np.ndarray]:
        """Reads the rows; all token types are 0."""
        tokenizer, column_L = self.tokenizer, np.arange(self.spec.max_seq_length)
        before = tokenizer.template.before
        is_real_BxL = column_L < plan.width_N[:, None]
        is_sep_BxL = np.unpackbits(plan.is_sep_NxW, axis=1, count=len(column_L)).view(bool)
        ids_BxL = np.where(is_sep_BxL, tokenizer.sep_id, tokenizer.pad_id).astype(np.int32)
        ids_BxL[:, : len(before)] = before
        is_text_BxL = is_real_BxL & ~is_sep_BxL & (column_L >= len(before))
        offset_N = plan.start_N - (np.cumsum(plan.length_N) - plan.length_N)
        text = np.arange(plan.length_N.sum()) + np.repeat(offset_N, plan.length_N)
        ids_BxL[is_text_BxL] = self.tokens_at(text)
        return {
            "input_ids": ids_BxL,
            "token_type_ids": np.zeros_like(ids_BxL),
            "attention_mask": is_real_BxL.astype(np.int32),
        }

    def _spans(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the first token of each row's text, its length, and whether [SEP] precedes it.

        Such a [SEP] ends the document before the row.
        """
        room = self.spec.max_seq_length - len(self.tokenizer.template.before)
        start_S, end_S = block.sentence_starts[:-1], block.sentence_starts[1:]
        if self.crosses_documents:
            # A document ends with an empty sentence.
            stops = block.document_starts[1:-1]
            start_S = np.insert(start_S, stops, block.sentence_starts[stops])
            end_S = np.insert(end_S, stops, block.sentence_starts[stops])
        used_S = np.cumsum(end_S - start_S + 1)
        following_S = np.searchsorted(used_S, np.append(0, used_S[:-1]) + room, side="right")
        following_S = np.maximum(following_S, np.arange(1, len(used_S) + 1))
        if not self.crosses_documents:
            stops = block.document_starts[1:]
            following_S = np.minimum(following_S, np.repeat(stops, np.diff(block.document_starts)))
        following, at, firsts = following_S.tolist(), 0, []
        while at < len(following):
            firsts.append(at)
            at = following[at]
        lasts = following_S[firsts] - 1
        start_N = start_S[firsts]
        length_N = np.minimum(end_S[lasts] - start_N, room - 1)
        has_text_N = length_N > 0
        return start_N[has_text_N], length_N[has_text_N], (start_N == end_S[firsts])[has_text_N]


class DocSentenceRows(FullSentenceRows):
    """`[CLS] sentence [SEP] sentence [SEP] ...`, with as many sentences of a document as fit."""

    crosses_documents: ClassVar[bool] = False

    def lengths(self, plan: PackedPlan) -> np.ndarray:
        return plan.width_N
