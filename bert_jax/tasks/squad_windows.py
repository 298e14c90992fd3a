"""Cuts questions with their contexts into rows; long contexts become overlapping windows.

The windows are those of google-research/bert's run_squad.py: `[CLS] question [SEP] window [SEP]`.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.tasks.squad_data import Question
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.tokenizers import Tokenizer, TokenRow


class Windows(TokenRows):
    """Rows of questions with windows of their contexts; see `TokenRows`.

    Args:
      questions: At least one.
      max_seq_length: The length of a row; at least `max_query_length` plus the special
        tokens plus one.
      doc_stride: The number of tokens from the start of one window to that of the next.
      max_query_length: Questions lose the tokens beyond this number.

    Attributes:
      questions: As given.
      question_N: The question of each row.
      first_token_N, num_tokens_N: The first of the row's tokens in the context, and their number.
      prefix_N: The position in the row at which the context starts.
      row_starts: Question q has the rows row_starts[q] to row_starts[q + 1].
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        *,
        max_seq_length: int,
        doc_stride: int,
        max_query_length: int,
    ):
        self.questions = questions
        template = tokenizer.template
        table: list[tuple[int, int, int, int]] = []

        def rows() -> Iterator[TokenRow]:
            for number, question in enumerate(questions):
                asked, context = question.ids[:max_query_length], question.context.ids
                prefix = template.second_offset(len(asked))
                room = max_seq_length - template.num_special(is_pair=True) - len(asked)
                for start, length in _cut(len(context), room, doc_stride):
                    table.append((number, start, length, prefix))
                    yield tokenizer.join(asked, context[start : start + length])

        super().__init__(rows(), tokenizer, max_seq_length)
        columns = np.array(table, np.int64).T
        self.question_N, self.first_token_N, self.num_tokens_N, self.prefix_N = columns
        self.row_starts = np.searchsorted(self.question_N, np.arange(len(questions) + 1))
        self._max_query_length = max_query_length
        self._has_labels = all(question.answers is not None for question in questions)

    def truncated(self) -> str:
        cut = sum(len(question.ids) > self._max_query_length for question in self.questions)
        if not cut:
            return ""
        return (
            f"{cut:,} of {len(self.questions):,} questions are truncated to "
            f"{self._max_query_length} tokens (config.squad.max_query_length)"
        )

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `TokenRows.take`.

        The labels are the positions of the first answer, or 0 ([CLS]) if the row does not hold
        all of it. They are absent if any answer is not known.
        """
        batch = super().take(indices)
        if self._has_labels:
            spans_nx2 = np.array([self._label(int(i)) for i in indices], np.int32).reshape(-1, 2)
            batch["start_positions"], batch["end_positions"] = spans_nx2.T
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        yield from dict.fromkeys(question.context.text for question in self.questions)
        for question in self.questions:
            yield question.id
            yield from question.answers or ()

    def rows_of(self, question: int) -> range:
        """Returns the rows of a question."""
        return range(self.row_starts[question], self.row_starts[question + 1])

    def is_max_context(self, row: int) -> np.ndarray:
        """Returns whether each token has more context in this row than in any other, bool [T].

        The context is the smaller number of tokens on its left and right, plus a hundredth of
        the window's length. The first of equally good rows counts.
        """
        rows = self.rows_of(self.question_N[row])
        rows_R = np.array(rows)
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        left_RxT = np.arange(start, start + num) - self.first_token_N[rows_R, None]
        right_RxT = self.num_tokens_N[rows_R, None] - 1 - left_RxT
        score_RxT = np.minimum(left_RxT, right_RxT) + 0.01 * self.num_tokens_N[rows_R, None]
        inside_RxT = (left_RxT >= 0) & (right_RxT >= 0)
        best_T = np.argmax(np.where(inside_RxT, score_RxT, -np.inf), axis=0)
        return rows.start + best_T == row

    def place(self, row: int, first: int, last: int) -> tuple[int, int]:
        """Returns the characters of the context in tokens `first` to `last` of a window."""
        characters_Tx2 = self.questions[self.question_N[row]].context.characters_Tx2
        start = self.first_token_N[row]
        return int(characters_Tx2[start + first, 0]), int(characters_Tx2[start + last, 1])

    def _label(self, row: int) -> tuple[int, int]:
        span = self.questions[self.question_N[row]].span
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        if span is None or span[0] < start or span[1] >= start + num:
            return 0, 0
        shift = self.prefix_N[row] - start
        return span[0] + shift, span[1] + shift


def _cut(total: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yields the first token and the number of tokens of each window."""
    start = 0
    while True:
        length = min(total - start, room)
        yield start, length
        if start + length == total:
            return
        start += min(length, stride)
