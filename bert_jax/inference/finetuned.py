"""A fine-tuned BERT and the predictions of its head."""

import unicodedata
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit, softmax

from bert_jax.errors import UserError
from bert_jax.inference.bert import Bert, one_or_two
from bert_jax.inference.compiled_forward import Inputs
from bert_jax.inference.encode_text import check_text, encode
from bert_jax.interop import formats
from bert_jax.interop.pretrained import Pretrained
from bert_jax.models.task_models import make_task_model
from bert_jax.tasks.glue import SPECS
from bert_jax.tasks.ner_rows import TaggedRows
from bert_jax.tasks.squad_answers import Answer, rank_answers
from bert_jax.tasks.squad_data import Context, Question
from bert_jax.tasks.squad_windows import Windows
from bert_jax.tokenizers import TokenRow

_METHODS = {
    "sequence_classification": "classify",
    "question_answering": "answer",
    "token_classification": "tag",
    "multiple_choice": "choose",
}


class Label(NamedTuple):
    """A class of a text and its probability.

    The probabilities of all classes add up to 1, unless the model is `multi_label`.
    """

    label: str
    probability: float


class TaggedWord(NamedTuple):
    """A word, its tag, and the tag's probability."""

    word: str
    tag: str
    probability: float


class Choice(NamedTuple):
    """One of the choices, its index and its probability."""

    text: str
    index: int
    probability: float


class FineTuned(Bert):
    """A `Bert` with a task head; it also computes features.

    Attributes:
      head: A key of `bert_jax.models.task_models.TASK_MODELS`.
      labels: The label names in the order of the logits.
      multi_label: Whether the labels are independent: any number of them may be right.
    """

    def __init__(self, pretrained: Pretrained):
        super().__init__(pretrained)
        self.head, self.labels = pretrained.head, pretrained.labels
        self.multi_label = pretrained.multi_label
        trained: dict[str, Any] = pretrained.training.get("config") or {}
        # The model was not fine-tuned on longer sequences.
        self.max_length = min(
            self.max_length, trained.get("data", {}).get("max_seq_length", self.max_length)
        )
        # Weights without a config get the values of configs/finetune/squad.py.
        defaults = {
            "doc_stride": min(128, self.max_length // 4),
            "max_query_length": min(64, self.max_length // 2),
            "n_best": 20,
            "max_answer_length": 30,
            "null_threshold": 0.0,
            "version": "",
        }
        self._answering = defaults | trained.get("squad", {})
        self._texts = _texts_of(trained)
        model = make_task_model(
            self.head, len(self.labels), self.config, pretrained.features, pretrained.bilstm_size
        )

        def outputs(params: Any, inputs: Inputs) -> jax.Array:
            batch = inputs.fields()
            if self.head == "multiple_choice":
                # Every choice has its own row; the logits are compared later.
                batch = {name: x[:, None] for name, x in batch.items()}
            by_name = model.apply({"params": params}, batch, deterministic=True)
            # "logits", or "end_logits" and "start_logits".
            return jnp.stack([by_name[name] for name in sorted(by_name)], axis=1)

        self._task_program = jax.jit(outputs)

    def classify(self, text: str, text_b: str | None = None) -> list[Label] | float:
        """Returns the classes of a sentence or a pair, the likeliest first.

        For a model with one output (regression), returns that number.

        Raises:
          UserError: A sentence is empty, or the model has another head.
        """
        self._require_head("classify")
        if self._texts and self._texts != (1 if text_b is None else 2):
            what = "single sentences" if self._texts == 1 else "pairs of sentences"
            warnings.warn(f"{self.source} was fine-tuned on {what}", stacklevel=2)
        rows = self.rows([one_or_two(text, text_b)])
        ((logits_C,),) = self._outputs(rows)
        if not self.labels:
            return float(logits_C[0])
        probs_C = (expit if self.multi_label else softmax)(logits_C.astype(np.float64))
        return [Label(self.labels[i], float(probs_C[i])) for i in _ranked(probs_C)]

    def answer(
        self,
        question: str,
        context: str,
        *,
        n_best: int = 5,
        with_no_answer: bool | None = None,
    ) -> list[Answer]:
        """Returns the parts of a text that answer a question, the likeliest first.

        A text of any length is read in overlapping windows. Probabilities are over the n best
        candidates, as in SQuAD's nbest_predictions.json, not over all spans.

        Args:
          question: The question, truncated to the length of questions in training.
          context: The text.
          n_best: The most answers to return.
          with_no_answer: Whether the answer may be empty, for a model of SQuAD 2.0. An empty one
            comes first if its score is above the best span's by `config.squad.null_threshold`. None
            means True if the weights record that they were fine-tuned on SQuAD 2.0.

        Raises:
          UserError: The question or the text is empty, the model has another head, or it was
            fine-tuned on SQuAD 1.1 and has not learned to give no answer.
        """
        self._require_head("answer")
        self.require_segments()
        version = self._answering["version"]
        if with_no_answer and version == "1.1":
            raise UserError(
                f"with_no_answer: {self.source} was fine-tuned on SQuAD 1.1, where every question "
                "has an answer (config.squad.version)"
            )
        if with_no_answer is None:
            with_no_answer = version == "2.0"
        if n_best < 1:
            raise UserError(f"n_best is {n_best}; it must be at least 1")
        encode(self.tokenizer, [question, context], None, places=("the question", "the text"))
        (ids,) = self.tokenizer.encode_batch([question])
        if len(ids) > self._answering["max_query_length"]:
            warnings.warn(
                f"the question is truncated to {self._answering['max_query_length']} tokens",
                stacklevel=2,
            )
        query = Question("0", ids, Context(context, *self.tokenizer.encode_aligned(context)))
        cut = {key: self._answering[key] for key in ("doc_stride", "max_query_length")}
        windows = Windows([query], self.tokenizer, max_seq_length=self.max_length, **cut)
        logits = self._outputs(list(windows))
        end_NxL, start_NxL = (_padded([x[i] for x in logits]) for i in (0, 1))
        (ranking,) = rank_answers(
            windows,
            start_NxL,
            end_NxL,
            n_best=max(n_best, self._answering["n_best"]),
            max_answer_length=self._answering["max_answer_length"],
            with_no_answer=with_no_answer,
        )
        answers = ranking.answers
        if with_no_answer:
            predicted = ranking.prediction(self._answering["null_threshold"])
            answers = sorted(answers, key=lambda answer: answer.text != predicted)
        return answers[:n_best]

    def tag(self, text: str | Sequence[str]) -> list[TaggedWord]:
        """Returns the tag of every word.

        Args:
          text: A list of words, or a text. The words of a text are runs of letters and digits,
            and single other characters; accents and joiners belong to the character before them.

        Raises:
          UserError: There is no word, or the model has another head.
        """
        self._require_head("tag")
        words = _words(text) if isinstance(text, str) else list(text)
        for number, word in enumerate(words, 1):
            check_text(word, f"word {number}")
        if not words or not all(word.strip() for word in words):
            raise UserError("there must be a word to tag, and no word may be empty")
        rows = TaggedRows([words], None, self.tokenizer, self.max_length)
        logits = [x[0] for x in self._outputs(list(rows))]
        tagged = []
        for word, row, position in zip(words, rows.word_row_W, rows.word_position_W, strict=True):
            probs_C = softmax(logits[row][position].astype(np.float64))
            best = int(np.argmax(probs_C))
            tagged.append(TaggedWord(word, self.labels[best], float(probs_C[best])))
        return tagged

    def choose(self, context: str, choices: Sequence[str]) -> list[Choice]:
        """Ranks answers to a question, or endings of a text, the likeliest first.

        Args:
          context: The question, or the text that the choices continue.
          choices: Two or more. SWAG's endings begin with `sent2`, as in training.

        Raises:
          UserError: A text is empty, there are fewer than two choices, or the model has
            another head.
        """
        self._require_head("choose")
        if isinstance(choices, str) or len(choices) < 2:
            raise UserError("choose takes a list of two choices or more")
        rows = self.rows([(context, choice) for choice in choices])
        logits_C = np.concatenate([x[0] for x in self._outputs(rows)])
        probs_C = softmax(logits_C.astype(np.float64))
        return [Choice(choices[i], i, float(probs_C[i])) for i in _ranked(probs_C)]

    def _outputs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Returns the head's outputs for each row, stacked in alphabetical order of their names."""
        return self._run(rows, partial(self._task_program, self._params))

    def _require_head(self, method: str) -> None:
        if _METHODS[self.head] != method:
            raise UserError(
                f"{self.source} is fine-tuned for {self.head}: use {_METHODS[self.head]}"
            )


def load_bert(path: str, step: int | None = None) -> Bert:
    """Reads a model; see `bert_jax.load`."""
    pretrained = formats.read(path, step=step)
    return (FineTuned if pretrained.head else Bert)(pretrained)


def _texts_of(trained: dict[str, Any]) -> int:
    """Returns how many sentences an example had in training, 1 or 2; 0 if not known."""
    if trained.get("task") in SPECS:
        return len(SPECS[trained["task"]].texts)
    if trained.get("task") == "table":
        return 2 if trained["table"]["text_b_column"] else 1
    return 0


def _ranked(probs_C: np.ndarray) -> list[int]:
    """Returns the indices of probabilities, the largest first."""
    return np.argsort(-probs_C, kind="stable").tolist()


def _words(text: str) -> list[str]:
    """Splits a text into runs of letters and digits, and single other characters."""
    words: list[str] = []
    before = ""
    for character in text:
        category = unicodedata.category(character)
        is_letter = character.isalnum() or character == "_"
        if character.isspace() or category == "Cc":
            before = ""
        elif category[0] == "M" or category == "Cf":
            # A mark that follows a blank is not a word.
            if before:
                words[-1] += character
        elif is_letter and before == "letter":
            words[-1] += character
        else:
            words.append(character)
            before = "letter" if is_letter else "sign"
    return words


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Pads rows of floats with zeros, which are never read."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = row
    return padded
