"""A fine-tuned BERT, and what its head answers."""

import os
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.inference import encode_text as rows_lib
from bert_jax.inference.arguments import checked, listed, whole_number
from bert_jax.inference.bert import Bert
from bert_jax.inference.compiled_forward import Inputs
from bert_jax.inference.encode_text import Row, check_text
from bert_jax.interop import formats
from bert_jax.interop.pretrained import Pretrained
from bert_jax.models.task_models import make_task_model
from bert_jax.tasks import squad_data
from bert_jax.tasks.glue import SPECS
from bert_jax.tasks.ner_rows import TaggedRows
from bert_jax.tasks.squad_answers import Answer, rank_answers
from bert_jax.tasks.squad_windows import Windows
from bert_jax.tasks.task import Rows

_QUESTIONS = {
    "sequence_classification": "classify",
    "question_answering": "answer",
    "token_classification": "tag",
    "multiple_choice": "choose",
}


class Label(NamedTuple):
    """A class of a text and its probability.

    Those of all classes add up to 1, unless each is judged by itself (`multi_label`).
    """

    label: str
    probability: float


class TaggedWord(NamedTuple):
    """A word, its tag, and the tag's probability."""

    word: str
    tag: str
    probability: float


class Choice(NamedTuple):
    """An answer or an ending that was offered, its place among them, and its probability."""

    text: str
    index: int
    probability: float


class FineTuned(Bert):
    """A `Bert` with the head of a task; features can be asked of it as well.

    Attributes:
      head: A key of `models.tasks.TASK_MODELS`.
      labels: Their names, in the order of the logits.
      multi_label: Whether each label is judged by itself: any number of them may be right.
    """

    def __init__(self, pretrained: Pretrained):
        super().__init__(pretrained)
        self.head, self.labels = pretrained.head, pretrained.labels
        self.multi_label = pretrained.multi_label
        trained: dict[str, Any] = pretrained.training.get("config") or {}
        # Longer ones it has not seen.
        self.max_length = min(
            self.max_length, trained.get("data", {}).get("max_seq_length", self.max_length)
        )
        # As configs/finetune/squad.py has them, for weights that do not tell.
        untold = {
            "doc_stride": min(128, self.max_length // 4),
            "max_query_length": min(64, self.max_length // 2),
            "n_best": 20,
            "max_answer_length": 30,
            "null_threshold": 0.0,
            "version": "",
        }
        self._answering = untold | trained.get("squad", {})
        self._texts = _texts_of(trained)
        model = make_task_model(
            self.head,
            len(self.labels),
            self.config,
            pretrained.features,
            pretrained.bilstm_size,
        )

        def outputs(params: Any, inputs: Inputs) -> jax.Array:
            mask_BxL = jnp.arange(inputs.input_ids_BxL.shape[1]) < inputs.lengths_B[:, None]
            arguments = inputs.input_ids_BxL, inputs.token_type_ids_BxL, mask_BxL
            if self.head == "multiple_choice":
                # Every choice is a row; it is not until its logit is read that they compete.
                arguments = tuple(x[:, None] for x in arguments)
            by_name = model.apply({"params": params}, *arguments, deterministic=True)
            # "logits", or "end_logits" and "start_logits".
            return jnp.stack([by_name[name] for name in sorted(by_name)], axis=1)

        self._task_program = jax.jit(outputs)

    def classify(self, text: str, text_b: str | None = None) -> list[Label] | float:
        """The classes of a sentence or a pair, the likeliest first; of regression the number.

        A model with one output gives that number as it is, not squeezed into a probability.

        Raises:
          UserError: a sentence is empty, or the model classifies no sentences.
        """
        self._require_head("classify")
        checked(text, text_b)
        if self._texts and self._texts != (1 if text_b is None else 2):
            what = "single sentences" if self._texts == 1 else "pairs of sentences"
            warnings.warn(f"{self.source} was fine-tuned on {what}", stacklevel=2)
        rows = self.rows([text if text_b is None else (text, text_b)])
        ((logits_C,),) = self._outputs(rows)
        if not self.labels:
            return float(logits_C[0])
        probs_C = _sigmoid(logits_C) if self.multi_label else _softmax(logits_C)
        ranked = np.argsort(-probs_C, kind="stable").tolist()
        return [Label(self.labels[i], float(probs_C[i])) for i in ranked]

    def answer(
        self,
        question: str,
        context: str,
        *,
        n_best: int = 5,
        with_no_answer: bool | None = None,
    ) -> list[Answer]:
        """What in a text answers a question, the likeliest first.

        A text of any length is read in windows that overlap. Probabilities are over the n best
        candidates, as in SQuAD's nbest_predictions.json, and not over all spans.

        Args:
          question: Its first tokens count, as many as in training.
          context: The text.
          n_best: Answers to return, at the most.
          with_no_answer: For a model of SQuAD 2.0: an empty answer, there is none, competes; it
            comes first where its score is above the best one's by `config.squad.null_threshold`.
            None: where the model was fine-tuned on SQuAD 2.0, as far as its weights tell.

        Raises:
          UserError: question or text is empty, the model answers no questions, or was
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
        n_best = whole_number("n_best", n_best)
        if n_best < 1:
            raise UserError(f"n_best is {n_best}; it must be at least 1")
        # What is wrong with them is told as of any text.
        places = ("the question", "the text")
        asked, _ = rows_lib.encode(self.tokenizer, [question, context], sys.maxsize, places=places)
        if len(asked.input_ids_L) - 2 > self._answering["max_query_length"]:
            warnings.warn(
                f"the question is longer than {self._answering['max_query_length']} tokens, and "
                "cut off there",
                stacklevel=2,
            )
        questions = squad_data.of_pairs(
            [(question, context)], self.tokenizer, with_no_answer=with_no_answer
        )
        cut = {key: self._answering[key] for key in ("doc_stride", "max_query_length")}
        windows = Windows(questions, self.tokenizer, max_seq_length=self.max_length, **cut)
        logits = self._outputs(_rows(windows))
        end_NxL, start_NxL = (_padded([x[i] for x in logits]) for i in (0, 1))
        limits = {
            "n_best": max(n_best, self._answering["n_best"]),
            "max_answer_length": self._answering["max_answer_length"],
        }
        (ranking,) = rank_answers(windows, start_NxL, end_NxL, **limits)
        answers = ranking.answers
        if with_no_answer:
            # Whether there is one, its own threshold decides.
            predicted = ranking.prediction(self._answering["null_threshold"])
            answers = sorted(answers, key=lambda answer: answer.text != predicted)
        return answers[:n_best]

    def tag(self, text: str | Sequence[str]) -> list[TaggedWord]:
        """The tag of every word.

        Args:
          text: Words as they are; or a text, whose words are its runs of letters and digits,
            and each other sign by itself; accents and joiners belong to what they follow.

        Raises:
          UserError: there is no word, or the model tags none.
        """
        self._require_head("tag")
        words = _words(text) if isinstance(text, str) else listed("tag", text)
        for number, word in enumerate(words, 1):
            check_text(word, lambda number=number: f"word {number}")
            if not word.strip():
                raise UserError(f"word {number} of {len(words)} is empty; leave it out")
        if not words:
            raise UserError("the text has no word to be tagged")
        rows = TaggedRows([words], None, self.tokenizer, self.max_length)
        logits = [x[0] for x in self._outputs(_rows(rows))]
        tagged = []
        for word, row, position in zip(words, rows.word_row_W, rows.word_position_W, strict=True):
            probs_C = _softmax(logits[row][position])
            best = int(np.argmax(probs_C))
            tagged.append(TaggedWord(word, self.labels[best], float(probs_C[best])))
        return tagged

    def choose(self, context: str, choices: Sequence[str]) -> list[Choice]:
        """Which of some answers to a question, or endings of a text, is right, likeliest first.

        Args:
          context: The question, or what the choices go on from.
          choices: Two or more. Of SWAG's an ending begins with `sent2`, as in training.

        Raises:
          UserError: a text is empty, there are not two choices, or the model makes none.
        """
        self._require_head("choose")
        choices = listed("choose", choices)
        if len(choices) < 2:
            raise UserError("choose takes a list of two choices or more")
        rows = self.rows([(context, choice) for choice in choices])
        probs_C = _softmax(np.concatenate([x[0] for x in self._outputs(rows)]))
        ranked = np.argsort(-probs_C, kind="stable").tolist()
        return [Choice(choices[i], i, float(probs_C[i])) for i in ranked]

    def _outputs(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Of each row the head's outputs, stacked in the order of their names."""

        def program(inputs: Inputs) -> jax.Array:
            return self._task_program(self._programs.params, inputs)

        outputs: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for i, x in self._run(rows, program):
            outputs[i] = x
        return outputs

    def _require_head(self, question: str) -> None:
        if _QUESTIONS[self.head] != question:
            raise UserError(
                f"{self.source} is fine-tuned for {self.head}: it can {_QUESTIONS[self.head]}"
            )


def load_bert(path: str, step: int | None = None) -> Bert:
    """Reads a model; see `bert_jax.load`."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"the model is {path!r}; it must be a path")
    pretrained = formats.read(path, step=step)
    return (FineTuned if pretrained.head else Bert)(pretrained)


def _texts_of(trained: dict[str, Any]) -> int:
    """Sentences of an example that a run classified, 1 or 2; 0 where that is not known."""
    if trained.get("task") in SPECS:
        return len(SPECS[trained["task"]].texts)
    if trained.get("task") == "table":
        return 2 if trained["table"]["text_b_column"] else 1
    return 0


def _words(text: str) -> list[str]:
    """Runs of letters and digits, and each other sign; marks stay with what they are on."""
    words: list[str] = []
    before = ""
    for character in text:
        category = unicodedata.category(character)
        is_letter = character.isalnum() or character == "_"
        if character.isspace() or category == "Cc":
            before = ""
        elif category[0] == "M" or category == "Cf":
            # Alone after a blank they are nothing that could be tagged.
            if before:
                words[-1] += character
        elif is_letter and before == "letter":
            words[-1] += character
        else:
            words.append(character)
            before = "letter" if is_letter else "sign"
    return words


def _rows(task_rows: Rows) -> list[Row]:
    batch = task_rows.take(np.arange(len(task_rows)))
    lengths_N = batch["attention_mask"].sum(axis=1).astype(int)
    second_N = batch["token_type_ids"].sum(axis=1).astype(int)
    return [
        Row(ids_L[:length].astype(np.int32), length - second, 0)
        for ids_L, length, second in zip(batch["input_ids"], lengths_N, second_N, strict=True)
    ]


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of floats as one array; what is missing is never read."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for n, row in enumerate(rows):
        padded[n, : len(row)] = row
    return padded


def _sigmoid(logits_C: np.ndarray) -> np.ndarray:
    # Halves of tanh overflow nowhere.
    return 0.5 + 0.5 * np.tanh(0.5 * logits_C.astype(np.float64))


def _softmax(logits_C: np.ndarray) -> np.ndarray:
    weights_C = np.exp(logits_C.astype(np.float64) - logits_C.max())
    return weights_C / weights_C.sum()
