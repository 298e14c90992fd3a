"""Questions with their contexts as rows: a context that is too long in windows that overlap.

As google-research/bert's run_squad.py cuts them: [CLS] question [SEP] window [SEP].
"""

from collections.abc import Iterator

import numpy as np

from bert_jax.errors import UserError
from bert_jax.tasks.ragged import padded
from bert_jax.tasks.squad_data import Questions
from bert_jax.tokenizers import Tokenizer


class Windows:
    """The rows of `Questions`; see `bert_jax.tasks.task.Rows`.

    Args:
      max_seq_length: Tokens of a row, with the three special ones.
      doc_stride: Tokens from the start of a window to that of the next.
      max_query_length: Of a question the first so many tokens are kept.

    Attributes:
      questions: What they are of.
      question_N: The question of each row.
      first_token_N, num_tokens_N: The tokens of the context that are in a row.
      prefix_N: Where in the row they start.
      row_starts: The rows of question q are row_starts[q] up to row_starts[q + 1].

    Raises:
      UserError: the lengths leave no room for a context.
    """

    def __init__(
        self,
        questions: Questions,
        tokenizer: Tokenizer,
        *,
        max_seq_length: int = 384,
        doc_stride: int = 128,
        max_query_length: int = 64,
    ):
        check_lengths(max_seq_length, doc_stride, max_query_length)
        self.questions = questions
        self._length, self._max_query = max_seq_length, max_query_length
        self._cls, self._sep = tokenizer.cls_id, tokenizer.sep_id
        self._pad = tokenizer.pad_id
        rows = [
            (q, start, length, prefix)
            for q in range(len(questions.questions))
            for start, length, prefix in self._cut(q, doc_stride)
        ]
        table = np.array(rows, np.int64).reshape(-1, 4)
        self.question_N, self.first_token_N, self.num_tokens_N, self.prefix_N = table.T
        self.row_starts = np.searchsorted(self.question_N, np.arange(len(questions.questions) + 1))
        self._labelled = all(question.answers is not None for question in questions.questions)

    def __len__(self) -> int:
        return len(self.question_N)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `bert_jax.tasks.task.Rows`; L is max_seq_length.

        The positions are those of the first answer, or 0, [CLS], where the row does not hold
        all of it; there are none if a question's answer is not known.
        """
        rows, types = [], []
        for index in map(int, indices):
            question, window = self._parts(index)
            row = [[self._cls], question, [self._sep], window, [self._sep]]
            rows.append(np.concatenate(row))
            types.append(np.repeat([0, 1], [len(question) + 2, len(window) + 1]))
        batch = {
            "input_ids": padded(rows, self._length, self._pad),
            "token_type_ids": padded(types, self._length),
            "attention_mask": padded([np.ones(len(row)) for row in rows], self._length),
        }
        if self._labelled:
            spans_nx2 = np.array([self._label(int(i)) for i in indices], np.int32).reshape(-1, 2)
            batch["start_positions"], batch["end_positions"] = spans_nx2.T
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        yield from self.questions.contexts
        for question in self.questions.questions:
            yield question.id
            yield from question.answers or ()

    def is_max_context(self, row: int) -> np.ndarray:
        """bool [tokens]: whether no other row of the question has more around that token.

        The smaller of what is left and right of it counts, and a hundredth of the window's
        length; of equal ones the first.
        """
        first_row, stop_row = self.row_starts[self.question_N[row] + np.array([0, 1])]
        rows_R = np.arange(first_row, stop_row)
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        left_RxT = np.arange(start, start + num) - self.first_token_N[rows_R, None]
        right_RxT = self.num_tokens_N[rows_R, None] - 1 - left_RxT
        score_RxT = np.minimum(left_RxT, right_RxT) + 0.01 * self.num_tokens_N[rows_R, None]
        inside_RxT = (left_RxT >= 0) & (right_RxT >= 0)
        best_T = np.argmax(np.where(inside_RxT, score_RxT, -np.inf), axis=0)
        return first_row + best_T == row

    def text(self, row: int, first: int, last: int) -> tuple[int, int]:
        """Where in the context's text tokens `first` to `last` of a row's window are."""
        context = self.questions.questions[self.question_N[row]].context
        characters = self.questions.context_characters.row(context)
        start = self.first_token_N[row]
        return int(characters[start + first, 0]), int(characters[start + last, 1])

    def _cut(self, question: int, doc_stride: int) -> list[tuple[int, int, int]]:
        """(first token, tokens, where they start in the row) of each window."""
        asked = min(len(self.questions.question_ids.row(question)), self._max_query)
        context = self.questions.questions[question].context
        total, room = len(self.questions.context_ids.row(context)), self._length - asked - 3
        windows, start = [], 0
        while True:
            length = min(total - start, room)
            windows.append((start, length, asked + 2))
            if start + length == total:
                return windows
            start += min(length, doc_stride)

    def _parts(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        index = self.question_N[row]
        question = self.questions.question_ids.row(index)[: self._max_query]
        context = self.questions.context_ids.row(self.questions.questions[index].context)
        start = self.first_token_N[row]
        return question, context[start : start + self.num_tokens_N[row]]

    def _label(self, row: int) -> tuple[int, int]:
        span = self.questions.questions[self.question_N[row]].span
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        if span is None or span[0] < start or span[1] >= start + num:
            return 0, 0
        shift = self.prefix_N[row] - start
        return span[0] + shift, span[1] + shift


def check_lengths(max_seq_length: int, doc_stride: int, max_query_length: int) -> None:
    """Raises UserError if these leave no room for a context."""
    if doc_stride < 1:
        raise UserError(f"config.squad.doc_stride is {doc_stride}, but it must be at least 1")
    if max_query_length < 1 or max_seq_length < max_query_length + 4:
        raise UserError(
            f"config.squad.max_query_length is {max_query_length} and config.data.max_seq_length "
            f"{max_seq_length}: the first must be at least 1, and the second larger by 4 or more"
        )
