"""Applies a model to every example of a file, and writes JSON lines."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.inference.features import check_output
from bert_jax.tasks import multiple_choice, ner, squad_data, table_files
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.readers import json_lines, open_text

# Examples are predicted in chunks, which bound the memory.
_CHUNK = 256
_DEFAULT_COLUMNS = ("text", "text_b")

Item = dict[str, Any]
# Predicts a list of examples with a `Bert` and the options of its method.
Predict = Callable[..., list[Item]]


def predict_file(
    command: str,
    bert: Any,
    source: str | os.PathLike,
    output: str | os.PathLike,
    advance: Callable[[int], None] = lambda examples: None,
    **options: Any,
) -> int:
    """Writes a line with the fields of each example and its predictions, in the same order.

    Args:
      command: A key of PREDICT.
      bert: A `Bert` or `FineTuned`.
      source: A file of JSON lines, or in a format that fine-tuning on such a task reads.
      output: FILE.jsonl, which is written whole or not at all.
      advance: Called with the number of examples just predicted.
      **options: Options of the method, such as `top_k`.

    Returns:
      The number of examples.

    Raises:
      UserError: An example cannot be used; the message names file and line.
    """
    check_output(output, source, (".jsonl",))
    path = files.open_path(source, "--input")
    if not path.is_file():
        raise UserError(f"--input is {source}; it must be a file that exists")
    predict, count = PREDICT[command], 0
    examples = read_examples(command, path)
    with files.new_file(output) as stream:
        while chunk := list(itertools.islice(examples, _CHUNK)):
            items = [item for _, item in chunk]
            try:
                predictions = predict(bert, items, **options)
            except UserError:
                # Find the example to name in the message.
                for where, item in chunk:
                    try:
                        predict(bert, [item], **options)
                    except UserError as error:
                        raise UserError(f"{where}: {error}") from None
                raise
            for item, predicted in zip(items, predictions, strict=True):
                line = json.dumps(item | predicted, ensure_ascii=False)
                stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
            count += len(chunk)
            advance(len(chunk))
        if not count:
            is_table = path.suffix in (".tsv", ".csv")
            hint = " (the first line of a table names its columns)" if is_table else ""
            raise UserError(f"{source} has no example{hint}")
    return count


def read_examples(command: str, path: Any) -> Iterator[tuple[str, Item]]:
    """Yields the place and the fields of each example of a file."""
    suffix = path.suffix.lower().removeprefix(".")
    if command == "answer" and suffix == "json":
        for where, context, raw in squad_data.read_file(path):
            asked = raw if isinstance(raw, dict) else {}
            fields = {key: asked.get(key) for key in ("id", "question")}
            yield where, fields | {"context": context}
    elif command == "tag" and suffix in ner.SUFFIXES:
        for sentence in ner.read_file(path):
            yield sentence.where[0], {"words": sentence.words}
    elif suffix in ("tsv", "csv"):
        rows = table_files.read_rows(path, (), BadRecords("refuse", ""), must_stay=True)
        yield from ((row.where, row.values) for row in rows)
    else:
        with open_text(path) as (_, stream):
            for line in json_lines(stream):
                where = f"{path}:{line.number}"
                try:
                    yield where, line.parse()
                except BadRecord as bad:
                    known = "--input must be JSON lines, or a table named .tsv or .csv"
                    raise UserError(f"{where}: {bad.detail}; {known}") from None


def _value(item: Item, name: str, kind: type = str) -> Any:
    if not isinstance(item.get(name), kind):
        known = ", ".join(item) or "none"
        what = "text" if kind is str else "list"
        raise UserError(f"it has no {what} `{name}`; its fields are: {known}")
    return item[name]


def _texts(bert: Any, items: list[Item]) -> list[str | tuple[str, ...]]:
    """Returns the text or pair of each example, in the columns that the model was trained on."""
    texts = []
    for item in items:
        columns = getattr(bert, "text_columns", ())
        if not columns or columns[0] not in item:
            # Tables without a second sentence often have a null for it.
            is_pair = item.get(_DEFAULT_COLUMNS[1]) is not None
            columns = _DEFAULT_COLUMNS[: 1 + is_pair]
        sides = tuple(_value(item, column) for column in columns)
        texts.append(sides if len(sides) == 2 else sides[0])
    return texts


def _classify(bert: Any, items: list[Item]) -> list[Item]:
    found = bert.classify(_texts(bert, items))
    return [
        {"prediction": labels}
        if isinstance(labels, float)
        else {"prediction": labels[0].label, "probabilities": dict(labels)}
        for labels in found
    ]


def _answer(bert: Any, items: list[Item], **options: Any) -> list[Item]:
    questions = [_value(item, "question") for item in items]
    found = bert.answer(questions, [_value(item, "context") for item in items], **options)
    keys = ("text", "start", "end", "probability")
    return [
        {
            "prediction": answers[0].text if answers else "",
            "answers": [{key: getattr(answer, key) for key in keys} for answer in answers],
        }
        for answers in found
    ]


def _tag(bert: Any, items: list[Item]) -> list[Item]:
    if all("words" in item for item in items):
        found = bert.tag([_value(item, "words", list) for item in items])
        return [{"prediction": [word.tag for word in words]} for words in found]
    texts = [_value(item, "text") for item in items]
    return [
        {
            "prediction": [word._asdict() for word in words],
            "entities": [entity._asdict() for entity in bert.entities_of(text, words)],
        }
        for text, words in zip(texts, bert.tag_texts(texts), strict=True)
    ]


def _choose(bert: Any, items: list[Item]) -> list[Item]:
    contexts, choices, names = [], [], []
    for item in items:
        if "choices" in item and "context" in item:
            context, texts = _value(item, "context"), _value(item, "choices", list)
            named = dict(enumerate(texts))
        else:
            try:
                read = multiple_choice.swag if "sent1" in item else multiple_choice.commonsense_qa
                context, named, _ = read(item)
            except (BadRecord, KeyError) as bad:
                raise UserError(
                    f"it must have `context` and `choices`, or be a row of SWAG or CommonsenseQA: "
                    f"{bad}"
                ) from None
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


def _score(bert: Any, items: list[Item]) -> list[Item]:
    return [
        {
            "pseudo_log_likelihood": score.log_likelihood,
            "pseudo_perplexity": score.perplexity,
        }
        for score in bert.score([_value(item, "text") for item in items])
    ]


def _fill_mask(bert: Any, items: list[Item], top_k: int = 5) -> list[Item]:
    found = bert.fill_mask(_texts(bert, items), top_k=top_k)
    return [{"masks": [[g._asdict() for g in mask] for mask in masks]} for masks in found]


PREDICT: dict[str, Predict] = {
    "classify": _classify,
    "answer": _answer,
    "tag": _tag,
    "choose": _choose,
    "score": _score,
    "fill-mask": _fill_mask,
}
