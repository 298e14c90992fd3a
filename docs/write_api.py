"""Writes the tables of api.md: `python docs/write_api.py`."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bert_jax
from bert_jax.batches.corruption.masked_lm import MaskingRules
from bert_jax.batches.rows.windows import WindowedRows
from bert_jax.heads import Head, builtin_heads
from bert_jax.heads.multiple_choice import Choice
from bert_jax.heads.reranker import Ranked
from bert_jax.heads.sequence_classification import Label
from bert_jax.heads.token_classification import Entity, TaggedWord
from bert_jax.inference.attending import Attention
from bert_jax.inference.bert import METHODS, Bert
from bert_jax.inference.detecting import Detection
from bert_jax.inference.filling import Guess
from bert_jax.inference.mining import Rules, mine
from bert_jax.inference.scoring import Score
from bert_jax.inference.writing import Written
from bert_jax.interop.family import Family
from bert_jax.objectives.term import Metric, Term
from bert_jax.tasks.squad_answers import Answer
from bert_jax.tokenizers.base import Tokenizer

PAGE = Path(__file__).with_name("api.md")
RESULTS = (
    *(Guess, Score, Written, Detection, Attention, Label, Ranked, TaggedWord, Entity, Answer),
    Choice,
)
PARTS = (Term, Metric, WindowedRows, MaskingRules, Head, Family, Tokenizer)


def with_tables(page: str) -> str:
    """Returns the page with the current tables, one after each of its marks."""
    tables = {
        "functions": _table(_public(bert_jax), "bert_jax."),
        "Bert": _table(METHODS | _public(Bert)),
        "FineTuned": _table(
            {name: x for head in builtin_heads().values() for name, x in head.methods.items()}
        ),
        "results": _table({kind.__name__: kind for kind in RESULTS}),
        "mining": _table({"mine": mine, "Rules": Rules}, "bert_jax.inference.mining."),
        "parts": _table(
            {f"{part.__module__}.{part.__name__}": part for part in PARTS}, fields=False
        ),
    }
    for name, table in tables.items():
        mark = f"<!-- {name} -->"
        page, count = re.subn(rf"{mark}\n\n(\|.*\n)*", lambda _, t=f"{mark}\n\n{table}": t, page)
        assert count == 1, f"{PAGE} has {count} times {mark}"
    return page


def _public(owner: Any) -> dict[str, Callable]:
    """Returns the functions that a module or class defines and describes, by name."""
    return {
        name: value
        for name in vars(owner)
        # A method that not every object has is a function only as an attribute of its class.
        if inspect.isfunction(value := getattr(owner, name)) and value.__doc__ and name[0] != "_"
    }


def _table(found: dict[str, Callable], prefix: str = "", fields: bool = True) -> str:
    rows = [
        f"| `{prefix}{name}{_call(x) if fields else ''}` | {_about(x)} |"
        for name, x in found.items()
    ]
    return "\n".join(["| name | what it is |", "|---|---|", *rows, ""])


def _call(function: Callable) -> str:
    """Returns the names and defaults of the parameters: "(text, text_b=None, *, top_k=5)"."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in signature.parameters.items()
        if name not in ("self", "bert")
    ]
    empty = inspect.Signature.empty
    return str(signature.replace(parameters=parameters, return_annotation=empty))


def _about(value: Any) -> str:
    """Returns the first paragraph of the docstring."""
    paragraph = inspect.getdoc(value).partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
