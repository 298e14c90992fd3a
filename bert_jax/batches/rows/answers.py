"""Prompts with their answers, for a model that writes answers."""

import dataclasses
from typing import ClassVar

import numpy as np

from bert_jax.base.batch import ANSWER_FIELDS, ENCODER_FIELDS, BatchFields
from bert_jax.base.errors import UserError
from bert_jax.batches.rows.blocks import Block
from bert_jax.batches.rows.halves import HalvesPlan, HalvesRows


class AnswerRows(HalvesRows):
    """`[CLS] prompt [SEP] answer [SEP] [SEP] ...`, one row for each document of two sentences.

    The row is filled with [SEP], which belong to the answer: a model learns where answers end (Nie
    et al. 2025, arXiv:2502.09992, section 2.3). If a row is too short for both, the answer keeps
    its first tokens, as many as the prompt leaves or half of the row if that is more. The prompt
    keeps its last tokens. What is cut off is not in any row.
    """

    fields: ClassVar[BatchFields] = {**ENCODER_FIELDS, **ANSWER_FIELDS}

    def __init__(self, store, tokenizer, spec):
        # A prompt or an answer is one sentence, however long.
        super().__init__(store, tokenizer, dataclasses.replace(spec, max_sentence_tokens=0))

    def assemble(self, plan: HalvesPlan) -> dict[str, np.ndarray]:
        batch, template = super().assemble(plan), self.tokenizer.template
        first_B = template.second_offset(plan.a_length_N)
        is_answer_BxL = np.arange(self.spec.max_seq_length) >= first_B[:, None]
        is_filled_BxL = batch["attention_mask"] == 0
        return {
            "input_ids": np.where(is_filled_BxL, self.tokenizer.sep_id, batch["input_ids"]),
            "token_type_ids": (is_answer_BxL & (template.num_segments == 2)).astype(np.int32),
            "attention_mask": np.ones_like(batch["attention_mask"]),
            "is_answer": is_answer_BxL.astype(np.int32),
        }

    def _chunks(
        self, block: Block, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns each prompt's first token, its answer's first token, and the token after it."""
        if (np.diff(block.document_starts) != 2).any():
            raise UserError(
                "config.data.rows is answers, but a document of the text is not a prompt with "
                "an answer: name both fields, such as config.data.text_field=prompt,answer"
            )
        first_N, middle_N = block.sentence_starts[:-1].reshape(-1, 2).T
        end_N, room = block.sentence_starts[2::2], self._max_num_tokens
        answer_N = np.minimum(end_N - middle_N, np.maximum(room - (middle_N - first_N), room // 2))
        return np.maximum(first_N, middle_N - (room - answer_N)), middle_N, end_N
