"""The verbs of `predict`, each a function from examples to results.

An example is a dict of fields: the words of a command line, or a line of a file. A result is a JSON
object with the same keys for both.
"""

import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks import multiple_choice, ner, squad_data
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.readers import BROKEN_JSON, json_lines, open_text, suffix_of, text_lines
from bert_jax.text.tables import as_text, read_rows

# Examples are predicted in chunks, which bound the memory, and after which progress is shown.
_CHUNK = 256
# What the names of tables end in.
_TABLES = (".tsv", ".csv", ".parquet", ".arrow")

Item = dict[str, Any]


class Verb(NamedTuple):
    """A command of `predict`. The model has a method of the same name.

    Attributes:
      predict: (model, examples, **options) -> results, one for each example.
      words: The words of a command line as parameters, named by the fields of an example.
    """

    predict: Callable[..., list[Item]]
    words: inspect.Signature
    options: tuple[str, ...] = ()


def predict_file(
    name: str,
    bert: Any,
    source: str | os.PathLike,
    output: str | os.PathLike,
    advance: Callable[[int], None] = lambda examples: None,
    **options: Any,
) -> int:
    """Writes a line with the fields of each example and its result, in the same order.

    Args:
      output: FILE.jsonl, which appears once it is complete.
    """
    files.check_output(output, (".jsonl",), source)
    verb, count = VERBS[name], 0
    examples = read_examples(name, source)
    with files.new_file(output) as stream:
        while chunk := list(itertools.islice(examples, _CHUNK)):
            items = [item for _, item in chunk]
            try:
                results = verb.predict(bert, items, **options)
            except Exception:
                # Find the example to name in the message.
                for where, item in chunk:
                    try:
                        verb.predict(bert, [item], **options)
                    except Exception as error:
                        is_known = isinstance(error, UserError | BadRecord)
                        kind = "" if is_known else f"{type(error).__name__}: "
                        raise UserError(f"{where}: {kind}{error}") from error
                raise
            for item, result in zip(items, results, strict=True):
                # Lists of Parquet may have dates in them.
                line = json.dumps(item | result, ensure_ascii=False, default=str)
                stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
            count += len(chunk)
            advance(len(chunk))
    return count


def read_examples(name: str, source: str | os.PathLike) -> Iterator[tuple[str, Item]]:
    """Yields FILE:LINE and the fields of each example of a file.

    Args:
      name: The command. `answer` also reads SQuAD's JSON, and `tag` CoNLL files; a .txt or .tsv
        is one if each line has a tag in its last column.
      source: A TSV, CSV, Parquet or Arrow file, FILE.txt with a text on each line, or JSON lines,
        where blank lines are ignored. They may be compressed.
    """
    path = files.checked_path(source, "--input")
    is_empty = True
    for example in _examples(name, path):
        is_empty = False
        yield example
    if is_empty:
        is_table = suffix_of(path) in _TABLES
        hint = " (the first line of a table names its columns)" if is_table else ""
        raise UserError(f"{path} has no example{hint}")


def format_of(name: str, path: Any) -> str:
    """Returns the format that a command takes a file for, in words."""
    suffix = suffix_of(path)
    if name == "answer" and suffix == ".json":
        return "SQuAD's JSON"
    if name == "tag" and ner.is_conll(path):
        return "CoNLL"
    if suffix in _TABLES:
        return "a table"
    return "a text on each line" if suffix == ".txt" else "JSON lines"


def _examples(name: str, path: Any) -> Iterator[tuple[str, Item]]:
    format = format_of(name, path)
    if format == "SQuAD's JSON":
        for where, context, raw in squad_data.read_file(path, BadRecords()):
            fields = {key: raw.get(key) for key in ("id", "question")}
            yield where, fields | {"context": context}
    elif format == "CoNLL":
        for sentence in ner.read_file(path, BadRecords()):
            yield sentence.where[0], {"words": sentence.words}
    elif format == "a table":
        rows = read_rows(path, (), BadRecords())
        yield from ((row.where, row.values) for row in rows)
    else:
        is_plain = format == "a text on each line"
        names = ", ".join((".txt", *_TABLES))
        hint = f"what is not JSON lines must be named {names}"
        with open_text(path) as (_, stream):
            for line in text_lines(stream) if is_plain else json_lines(stream):
                where = f"{path}:{line.number}"
                with BadRecords(advice={BROKEN_JSON: hint}).catching(where):
                    yield where, {"text": line.text().rstrip("\r\n")} if is_plain else line.parse()


def _value(item: Item, name: str, kind: Any = str) -> Any:
    if name not in item:
        raise UserError(f"it has no field `{name}`; its fields: {', '.join(item) or 'none'}")
    # What is missing (null, NaN) is an empty text.
    value = "" if kind is str and as_text(item[name]) == "" else item[name]
    if not isinstance(value, kind):
        what = "string" if kind is str else "list"
        raise UserError(f"`{name}` is {value!r:.40}; it must be a {what}")
    return value


def _values(items: list[Item], name: str) -> list[str]:
    return [_value(item, name) for item in items]


def texts_of(
    bert: Any, items: list[Item], text_columns: Sequence[str] = ()
) -> list[str | tuple[str, ...]]:
    """Finds the text or pair of each example.

    They are in `text_columns`. If this is empty, they are in the columns that the model was trained
    on, or in `text` and `text_b`.
    """
    texts = []
    for item in items:
        columns = tuple(text_columns) or getattr(bert, "text_columns", ())
        # Files and command lines may always use `text`, whatever the columns in training.
        own = set(columns) - {"text"}
        is_other = "text" in item and not (own and own <= item.keys())
        if not columns or (is_other and not text_columns):
            columns = ("text", "text_b")[: 1 + ("text_b" in item)]
        first, second = (*(_value(item, column) for column in columns), "")[:2]
        # Tables without a second sentence often have a null or an empty text for it.
        texts.append((first, second) if second.strip() else first)
    return texts


def _fill_mask(
    bert: Any, items: list[Item], top_k: int = 5, text_columns: Sequence[str] = ()
) -> list[Item]:
    found = bert.fill_mask(texts_of(bert, items, text_columns), top_k=top_k)
    return [{"masks": [_objects(guesses) for guesses in masks]} for masks in found]


def _next_sentence(bert: Any, items: list[Item]) -> list[Item]:
    found = bert.next_sentence(_values(items, "text"), _values(items, "text_b"))
    return [{"is_next": probability, "random": 1 - probability} for probability in found]


def _score(bert: Any, items: list[Item]) -> list[Item]:
    return [
        {
            "tokens": [
                {"token": token, "log_prob": log_prob}
                for token, log_prob in zip(score.tokens, score.log_probs, strict=True)
            ],
            "pseudo_log_likelihood": score.log_likelihood,
            "pseudo_perplexity": score.perplexity,
        }
        for score in bert.score(_values(items, "text"))
    ]


def _detect(bert: Any, items: list[Item], text_columns: Sequence[str] = ()) -> list[Item]:
    found = bert.detect(texts_of(bert, items, text_columns))
    return [{"tokens": _objects(tokens)} for tokens in found]


def _denoise(bert: Any, items: list[Item]) -> list[Item]:
    return [{"prediction": text} for text in bert.denoise(_values(items, "text"))]


def _classify(
    bert: Any, items: list[Item], text_columns: Sequence[str] = (), threshold: float | None = None
) -> list[Item]:
    if threshold is not None and not bert.multi_label:
        raise UserError("--threshold is for models with several labels a text")
    least = bert.threshold if threshold is None else threshold
    found = []
    for labels in bert.classify(texts_of(bert, items, text_columns)):
        if isinstance(labels, float):
            found.append({"prediction": labels})
            continue
        chosen = labels[0].label
        if bert.multi_label:
            chosen = [label.label for label in labels if label.probability > least]
        found.append({"prediction": chosen, "probabilities": dict(labels)})
    return found


def _answer(bert: Any, items: list[Item], **options: Any) -> list[Item]:
    found = bert.answer(_values(items, "question"), _values(items, "context"), **options)
    keys = ("text", "start", "end", "probability")
    return [
        {
            "prediction": answers[0].text if answers else "",
            "answers": [{key: getattr(answer, key) for key in keys} for answer in answers],
        }
        for answers in found
    ]


def _tag(bert: Any, items: list[Item]) -> list[Item]:
    fields = [name for name in ner.WORD_FIELDS if all(name in item for item in items)]
    if fields:
        found = bert.tag([_value(item, fields[0], list) for item in items])
        return [{"prediction": [word.tag for word in words]} for words in found]
    texts = _values(items, "text")
    return [
        {"prediction": _objects(words), "entities": _objects(bert.entities_of(text, words))}
        for text, words in zip(texts, bert.tag_texts(texts), strict=True)
    ]


def _choose(bert: Any, items: list[Item]) -> list[Item]:
    contexts, choices, names = [], [], []
    for item in items:
        if "sent1" in item:
            context, named, _ = multiple_choice.swag(item)
        elif "question" in item and "context" not in item:
            context, named, _ = multiple_choice.commonsense_qa(item)
        else:
            context = _value(item, "context")
            # The words of a command line are a tuple.
            named = dict(enumerate(_value(item, "choices", list | tuple)))
        contexts.append(context)
        choices.append(list(named.values()))
        names.append(list(named))
    found = bert.choose(contexts, choices)
    return [
        {
            "prediction": named[ranked[0].index],
            "probabilities": {str(named[x.index]): x.probability for x in ranked},
        }
        for named, ranked in zip(names, found, strict=True)
    ]


def _objects(predictions: list[Any]) -> list[Item]:
    return [prediction._asdict() for prediction in predictions]


_TEXT = inspect.signature(lambda text: None)
_PAIR = inspect.signature(lambda text, text_b: None)
TEXT_OR_PAIR = inspect.signature(lambda text, text_b=None: None)
_QUESTION = inspect.signature(lambda question, context: None)
_CHOICES = inspect.signature(lambda context, *choices: None)
VERBS = {
    "fill-mask": Verb(_fill_mask, TEXT_OR_PAIR, ("top_k", "text_columns")),
    "next-sentence": Verb(_next_sentence, _PAIR),
    "score": Verb(_score, _TEXT),
    "detect": Verb(_detect, TEXT_OR_PAIR, ("text_columns",)),
    "denoise": Verb(_denoise, _TEXT),
    "classify": Verb(_classify, TEXT_OR_PAIR, ("text_columns", "threshold")),
    "answer": Verb(_answer, _QUESTION, ("n_best", "with_no_answer", "null_threshold")),
    "tag": Verb(_tag, _TEXT),
    "choose": Verb(_choose, _CHOICES),
}
