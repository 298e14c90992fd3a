"""A fine-tuned BERT and the predictions of its head."""

import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, softmax

from bert_jax.base.errors import UserError
from bert_jax.config.task_sections import TASK_SECTIONS
from bert_jax.inference import forward
from bert_jax.inference.bert import (
    TASK_METHODS,
    Bert,
    SecondTexts,
    Texts,
    as_texts,
    if_possible,
    one_or_all,
)
from bert_jax.interop import formats
from bert_jax.interop.pretrained import Pretrained
from bert_jax.models.task_models import make_task_model
from bert_jax.tasks import ner_tags
from bert_jax.tasks.glue import SPECS
from bert_jax.tasks.ner import TaggedRows
from bert_jax.tasks.squad_answers import Answer, rank_answers
from bert_jax.tasks.squad_data import Context, Question, Windows
from bert_jax.tasks.token_rows import windows
from bert_jax.tokenizers import TokenRow

# The method for each head.
METHODS = {
    "sequence_classification": "classify",
    "question_answering": "answer",
    "token_classification": "tag",
    "multiple_choice": "choose",
}


class Label(NamedTuple):
    """A class of a text and its probability.

    The probabilities of all classes add up to 1, unless the model has `multi_label`.
    """

    label: str
    probability: float


class TaggedWord(NamedTuple):
    """A word, its tag, the tag's probability, and the span of the word in the text, if any."""

    word: str
    tag: str
    probability: float
    start: int | None = None
    end: int | None = None


class Entity(NamedTuple):
    """An entity, its span in the text, and the lowest probability of its tags."""

    type: str
    text: str
    start: int
    end: int
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
      multi_label: Whether the labels are independent: any number of them may be right.
      threshold: The probability above which `predict` gives such a label.
      text_columns: The columns of the one or two sentences of a training example; empty if they
        are not known.
    """

    def __init__(self, pretrained: Pretrained):
        super().__init__(pretrained)
        self.head, self.labels = pretrained.head, pretrained.labels
        self.multi_label = pretrained.multi_label
        trained: dict[str, Any] = pretrained.training.get("config") or {}
        # Weights without a config get the values of configs/finetune/squad.py.
        defaults = {key: field.default for key, field in TASK_SECTIONS["squad"].items()} | {
            "doc_stride": min(128, self.max_length // 4),
            "max_query_length": min(64, self.max_length // 2),
            "version": "",
        }
        self._answering = defaults | trained.get("squad", {})
        self.text_columns = text_columns(trained)
        self.threshold = trained.get("table", {}).get("threshold", 0.5)
        self._in_windows = trained.get("data", {}).get("long_texts") == "windows"
        own = METHODS[self.head]
        problem = f"{self.source} is fine-tuned for {self.head}: use {own}"
        able = (own, "tag_texts", "entities") if own == "tag" else (own,)
        self.missing |= dict.fromkeys(TASK_METHODS, problem) | dict.fromkeys(able, "")

    @if_possible
    def classify(self, text: Texts, text_b: SecondTexts = None) -> Any:
        """Ranks the classes of a sentence or a pair, the likeliest first: a list of `Label`.

        A model with one output (regression) gives that number instead. A list of sentences or pairs
        gives a list of such results.
        """
        texts = as_texts(text, text_b)
        size = len(self.text_columns)
        if size and any(isinstance(t, str) == (size == 2) for t in texts):
            what = "single sentences" if size == 1 else "pairs of sentences"
            warnings.warn(f"{self.source} was fine-tuned on {what}", stacklevel=2)
        if self._in_windows and all(isinstance(t, str) for t in texts):
            rows = self.rows(texts, whole=True)
            in_windows = [windows(row, self.tokenizer, self.max_length) for row in rows]
        else:
            in_windows = [[row] for row in self.rows(texts)]
        outputs = iter(self._outputs([row for rows in in_windows for row in rows]))
        logits = [np.mean([next(outputs)[0] for _ in rows], axis=0) for rows in in_windows]
        return one_or_all(text, [self._classes(logits_C) for logits_C in logits])

    def _classes(self, logits_C: np.ndarray) -> list[Label] | float:
        if not self.labels:
            return float(logits_C[0])
        probs_C = (expit if self.multi_label else softmax)(logits_C.astype(np.float64))
        return [Label(self.labels[i], float(probs_C[i])) for i in _ranked(probs_C)]

    @if_possible
    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        n_best: int = 5,
        with_no_answer: bool | None = None,
        null_threshold: float | None = None,
    ) -> list[Answer] | list[list[Answer]]:
        """Finds the parts of a text that answer a question, the likeliest first.

        A text of any length is read in overlapping windows. Probabilities are over the n best
        candidates, as in SQuAD's nbest_predictions.json, not over all spans.

        Args:
          question: The question, truncated to the length of questions in training; or a list.
          context: The text; for a list of questions, a list with the text of each. The result is
            then a list of lists.
          n_best: The largest number of answers to return.
          with_no_answer: Whether the answer may be empty, for a model of SQuAD 2.0. An empty one
            comes first if its score is above the best span's by `null_threshold`. None means True
            if the weights record that they were fine-tuned on SQuAD 2.0.
          null_threshold: Such as `best_f1_thresh` in the results of the training; by default that
            of the training, `config.squad.null_threshold`.
        """
        self.require_segments()
        version = self._answering["version"]
        if with_no_answer is None:
            with_no_answer = version == "2.0"
        if null_threshold is None:
            null_threshold = self._answering["null_threshold"]
        elif not with_no_answer:
            raise UserError("null_threshold has no effect without with_no_answer=True")
        pairs = as_texts(question, context)
        if not pairs:
            return []
        ids = self.tokenizer.encode_batch([asked for asked, _ in pairs])
        texts = dict.fromkeys(text for _, text in pairs)
        contexts = {text: Context(text, *self.tokenizer.encode_aligned(text)) for text in texts}
        limit = self._answering["max_query_length"]
        if any(len(ids_Q) > limit for ids_Q in ids):
            warnings.warn(f"the question is truncated to {limit} tokens", stacklevel=2)
        queries = [
            Question(str(number), ids_Q, contexts[text])
            for number, (ids_Q, (_, text)) in enumerate(zip(ids, pairs, strict=True))
        ]
        cut = {key: self._answering[key] for key in ("doc_stride", "max_query_length")}
        windows = Windows(queries, self.tokenizer, max_seq_length=self.max_length, **cut)
        logits = self._outputs(list(windows))
        ends, starts = ([x[i] for x in logits] for i in (0, 1))
        rankings = rank_answers(
            windows,
            starts,
            ends,
            n_best=max(n_best, self._answering["n_best"]),
            max_answer_length=self._answering["max_answer_length"],
            with_no_answer=with_no_answer,
        )
        found = []
        for ranking in rankings:
            answers = ranking.answers
            if with_no_answer:
                predicted = ranking.prediction(null_threshold)
                answers = sorted(answers, key=lambda answer, best=predicted: answer.text != best)
            found.append(answers[:n_best])
        return one_or_all(question, found)

    @if_possible
    def tag(
        self, text: str | Sequence[str] | Sequence[Sequence[str]]
    ) -> list[TaggedWord] | list[list[TaggedWord]]:
        """Tags every word.

        Args:
          text: A text (see `word_spans`), a list of words, or a list of lists of words, which gives
            a list of lists.
        """
        if isinstance(text, str):
            return self.tag_texts([text])[0]
        is_list = isinstance(text, Iterable) and not isinstance(text, Mapping)
        words = list(text) if is_list else as_texts(text)
        if words and not any(isinstance(word, str) for word in words):
            return self._tag([as_texts(sentence) for sentence in words])
        return self._tag([as_texts(words)])[0]

    @if_possible
    def entities(self, text: str) -> list[Entity]:
        """Finds the entities of a text: neighboring words whose tags belong together."""
        return self.entities_of(text, self.tag(text))

    @if_possible
    def tag_texts(self, texts: Sequence[str]) -> list[list[TaggedWord]]:
        """Tags every word of each text; see `tag`."""
        texts = as_texts(texts)
        by_letter = self.tokenizer.kind == "protein"
        spans = [word_spans(text, by_letter=by_letter) for text in texts]
        words = [[text[a:b] for a, b in found] for text, found in zip(texts, spans, strict=True)]
        return [
            [word._replace(start=a, end=b) for word, (a, b) in zip(tagged, found, strict=True)]
            for tagged, found in zip(self._tag(words), spans, strict=True)
        ]

    def entities_of(self, text: str, words: Sequence[TaggedWord]) -> list[Entity]:
        # A label without B or I is a type.
        tags = [ner_tags.parse(word.tag) or f"I-{word.tag}" for word in words]
        found = []
        for type_, first, last in ner_tags.entities(tags):
            start, end = words[first].start, words[last].end
            probability = min(word.probability for word in words[first : last + 1])
            found.append(Entity(type_, text[start:end], start, end, probability))
        return found

    def _tag(self, sentences: list[list[str]]) -> list[list[TaggedWord]]:
        if not all(
            words and all(isinstance(word, str) and word.strip() for word in words)
            for words in sentences
        ):
            raise UserError("there must be a word to tag, and no word may be empty")
        rows = TaggedRows(sentences, None, self.tokenizer, self.max_length)
        logits = [x[0] for x in self._outputs(list(rows))]
        positions = zip(rows.word_row_W, rows.word_position_W, strict=True)
        probabilities = (softmax(logits[n][at].astype(np.float64)) for n, at in positions)
        tagged = []
        for words in sentences:
            tagged.append([])
            for word, probs_C in zip(words, probabilities, strict=False):
                best = int(np.argmax(probs_C))
                tagged[-1].append(TaggedWord(word, self.labels[best], float(probs_C[best])))
        return tagged

    @if_possible
    def choose(
        self, context: str | Sequence[str], choices: Sequence[str] | Sequence[Sequence[str]]
    ) -> list[Choice] | list[list[Choice]]:
        """Ranks answers to a question, or endings of a text, the likeliest first.

        Args:
          context: The question, or the text that the choices continue; or a list of them.
          choices: Two or more texts. For a model of SWAG they begin with `sent2`, as in training.
            For a list of contexts, a list with the choices of each; the result is then a list of
            lists.
        """
        contexts = as_texts(context)
        lists = [choices] if isinstance(context, str) else list(choices)
        if len(lists) != len(contexts):
            raise UserError(f"there are {len(contexts)} texts, but {len(lists)} lists of choices")
        pairs = list(zip(contexts, map(as_texts, lists), strict=True))
        rows = self.rows([(text, choice) for text, texts in pairs for choice in texts])
        logits = iter(self._outputs(rows))
        found = []
        for _, texts in pairs:
            logits_C = np.concatenate([next(logits)[0] for _ in texts])
            probs_C = softmax(logits_C.astype(np.float64))
            found.append([Choice(texts[i], i, float(probs_C[i])) for i in _ranked(probs_C)])
        return one_or_all(context, found)

    def _outputs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Computes the outputs of the head for each row, stacked in the order of their names."""
        model = make_task_model(self.head, len(self.labels), self.config)
        return self.run(rows, partial(forward.task_outputs, model, self._params))


def load_bert(path: str, step: int | None = None) -> Bert:
    """Reads a model, with a warning for each part that is left out; see `bert_jax.load`."""
    pretrained = formats.read(path, step=step)
    bert = (FineTuned if pretrained.head else Bert)(pretrained)
    for warning in pretrained.warnings:
        warnings.warn(warning, stacklevel=3)
    return bert


def text_columns(trained: dict[str, Any]) -> tuple[str, ...]:
    """Finds the columns of the sentences in the training data; empty if they are not known."""
    if trained.get("task") in SPECS:
        return SPECS[trained["task"]].texts
    if trained.get("task") == "table":
        table = trained["table"]
        columns = (table.get("text_column", "text"), table["text_b_column"])
        return tuple(column for column in columns if column)
    return ()


def word_spans(text: str, *, by_letter: bool = False) -> list[tuple[int, int]]:
    """Finds the words of a text: runs of letters and digits, and single other characters.

    Accents and joiners belong to the character before them. With `by_letter`, each letter is a
    word, as in a protein.
    """
    spans: list[tuple[int, int]] = []
    before = ""
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        is_letter = character.isalnum() or character == "_"
        is_joiner = category[0] == "M" or category == "Cf"
        if character.isspace() or category == "Cc":
            before = ""
        elif is_joiner and not before:
            # A mark after a blank is not a word.
            continue
        elif is_joiner or is_letter and before == "letter" and not by_letter:
            spans[-1] = (spans[-1][0], index + 1)
        else:
            spans.append((index, index + 1))
            before = "letter" if is_letter else "sign"
    return spans


def _ranked(probs_C: np.ndarray) -> list[int]:
    return np.argsort(-probs_C, kind="stable").tolist()
