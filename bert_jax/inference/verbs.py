"""The verbs of `predict`, and the files of their examples; see `heads.verb`."""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.heads import builtin_heads
from bert_jax.heads.verb import (
    PAIR,
    TEXT,
    TEXT_OR_PAIR,
    FileFormat,
    Item,
    Verb,
    objects,
    texts_of,
    value_of,
    values_of,
)
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.readers import BROKEN_JSON, json_lines, open_text, suffix_of, text_lines
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers.given_texts import Text

# Examples are predicted in chunks, which bound the memory, and after which progress is shown.
_CHUNK = 256
# What the names of tables end in.
_TABLES = (".tsv", ".csv", ".parquet", ".arrow")


def predict_file(
    verb: Verb,
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
    count, examples = 0, read_examples(source, verb.format)
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
                if "NaN" in line or "Infinity" in line:
                    # JSON has no such numbers. The words in a text stay.
                    values = json.loads(line, parse_constant=lambda name: None)
                    line = json.dumps(values, ensure_ascii=False)
                stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
            count += len(chunk)
            advance(len(chunk))
    return count


def read_examples(
    source: str | os.PathLike, own_format: FileFormat | None = None
) -> Iterator[tuple[str, Item]]:
    """Yields FILE:LINE and the fields of each example of a file.

    Args:
      source: A TSV, CSV, Parquet or Arrow file, FILE.txt with a text on each line, or JSON lines,
        where blank lines are ignored. They may be compressed.
      own_format: One that is read too.
    """
    path = files.checked_path(source, "--input")
    is_empty = True
    for example in _examples(path, own_format):
        is_empty = False
        yield example
    if is_empty:
        is_table = suffix_of(path) in _TABLES
        hint = " (the first line of a table names its columns)" if is_table else ""
        raise UserError(f"{path} has no example{hint}")


def format_of(path: Any, own_format: FileFormat | None = None) -> str:
    """Returns the format that a file is taken for, in words; see `read_examples`."""
    if own_format and own_format.matches(path):
        return own_format.name
    suffix = suffix_of(path)
    if suffix in _TABLES:
        return "a table"
    return "a text on each line" if suffix == ".txt" else "JSON lines"


def _examples(path: Any, own_format: FileFormat | None) -> Iterator[tuple[str, Item]]:
    format = format_of(path, own_format)
    if own_format and format == own_format.name:
        yield from own_format.read(path)
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


def _fill_mask(
    bert: Any, items: list[Item], top_k: int = 5, text_columns: Sequence[str] = ()
) -> list[Item]:
    found = bert.fill_mask(texts_of(bert, items, text_columns), top_k=top_k)
    return [{"masks": [objects(guesses) for guesses in masks]} for masks in found]


def _next_sentence(bert: Any, items: list[Item]) -> list[Item]:
    found = bert.next_sentence(values_of(items, "text"), values_of(items, "text_b"))
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
        for score in bert.score(values_of(items, "text"))
    ]


def _detect(bert: Any, items: list[Item], text_columns: Sequence[str] = ()) -> list[Item]:
    found = bert.detect(texts_of(bert, items, text_columns))
    return [{"tokens": objects(tokens)} for tokens in found]


def _write(
    bert: Any,
    items: list[Item],
    show_steps: bool = False,
    samples: int | None = None,
    **options: Any,
) -> list[Item]:
    if show_steps and samples:
        raise UserError("show_steps shows the steps of one text; leave samples out")
    prompts = [_prompt_of(item) for item in items]
    results = bert.write(prompts, samples=samples, **options)
    if samples:
        return [{"samples": [{"text": written.text} for written in found]} for found in results]
    if show_steps:
        return [
            {"steps": [{"step": n, "text": text} for n, text in enumerate(written.history, 1)]}
            for written in results
        ]
    return [{"prediction": written.text} for written in results]


def _prompt_of(item: Item) -> Text:
    """Returns a text to go on with, or a `prompt` or `text` with the beginning of its answer."""
    if "prompt" in item:
        return value_of(item, "prompt"), ""
    text = value_of(item, "text")
    return (text, value_of(item, "text_b")) if "text_b" in item else text


def _denoise(bert: Any, items: list[Item]) -> list[Item]:
    return [{"prediction": text} for text in bert.denoise(values_of(items, "text"))]


_WRITING = ("length", "steps", "samples", "order", "block", "temperature", "seed")
_OWN = (
    Verb("fill-mask", _fill_mask, TEXT_OR_PAIR, ("top_k", "text_columns")),
    Verb("next-sentence", _next_sentence, PAIR),
    Verb("score", _score, TEXT),
    Verb("detect", _detect, TEXT_OR_PAIR, ("text_columns",)),
    Verb("denoise", _denoise, TEXT),
    Verb("write", _write, TEXT_OR_PAIR, (*_WRITING, "show_steps")),
)
_OF_HEADS = tuple(head.verb for head in builtin_heads().values() if head.verb)
VERBS = {verb.name: verb for verb in _OWN + _OF_HEADS}
