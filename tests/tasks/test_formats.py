"""Rows of any values are read or refused, and alike in all formats that have lists."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from bert_jax.base.errors import UserError
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import both, open_task

TOKENIZER = make_tokenizer()
NAN = float("nan")
# Arrow has columns of one type.
POOLS = [
    ["a b", None, "", "c"],
    [1, 0, None],
    [1.0, 0.0, 0.5, NAN, None],
    [True, False, None],
    [["a"], ["a", "b"], ["b", None], [], None],
    [[0, 1], [1, 1], [0, 0], [1], None],
    [[1.0, 0.0], [1.0, 1.0], [0.5, 1.0]],
    [[True, False], [False, True]],
    ["[1, 0]", "['a', 'b']", "a,b", "(a)", "[a", ""],
    [{"a": 1}, None],
    [[["a"]], [["b", "c"]], []],
]
# Any values, which only JSON can have in one column.
ANY = [value for pool in POOLS for value in pool] + ["\ud800", ["\ud800"], 10**30, -1]
COLUMNS = {
    "table": ("text", "label", "text_b"),
    "embedding": ("anchor", "positive", "negative", "neg", "label"),
    "ner": ("tokens", "ner_tags"),
    "multiple_choice": ("id", "question", "choices", "answerKey"),
    "squad": ("id", "question", "context", "answers"),
}
OPTIONS = {
    "table": (
        {},
        {"text_b_column": "text_b"},
        {"regression": True},
        {"multi_label": True},
        {"multi_label": True, "label_column": "label,text_b"},
    ),
    "embedding": ({}, {"loss": "triplet"}, {"loss": "cosent"}, {"loss": "contrastive"}),
    "ner": ({}, {"plain_tags": True}),
    "squad": ({"max_query_length": 4, "doc_stride": 4},),
}


@st.composite
def examples(draw, pools):
    name = draw(st.sampled_from([*COLUMNS]))
    options = draw(st.sampled_from(OPTIONS.get(name, ({},))))
    columns = {column: draw(st.sampled_from(pools)) for column in COLUMNS[name]}
    if draw(st.booleans()):
        # Texts that are no reason to refuse a row.
        columns |= {c: ["a b", "c"] for c in ("text", "anchor", "question") if c in columns}
    row = st.fixed_dictionaries({column: st.sampled_from(pool) for column, pool in columns.items()})
    policy = draw(st.sampled_from(["refuse", "skip"]))
    return name, {"bad_rows": policy, **options}, draw(st.lists(row, min_size=1, max_size=5))


def outcome(name, options, path):
    """Returns the labels and rows that a task reads, or the message of its refusal."""
    try:
        task = open_task(name, both(path), TOKENIZER, **options)
        rows = task.rows("train")
    except UserError as error:
        return str(error).replace(str(path), "FILE")
    labels = getattr(rows, "labels_N", None)
    ids = [row.input_ids_L.tolist() for row in rows]
    return task.labels, ids, labels if labels is None else np.asarray(labels).tolist()


@settings(deadline=None, max_examples=150)
@given(example=examples(POOLS))
def test_json_lines_parquet_and_arrow_are_read_alike(example, tmp_path_factory):
    name, options, rows = example
    folder = tmp_path_factory.mktemp("rows")
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = pa.Table.from_pylist(rows)
    found = [outcome(name, options, folder / "x.jsonl")]
    with ipc.new_stream(folder / "x.arrow", table.schema) as stream:
        stream.write_table(table)
    found.append(outcome(name, options, folder / "x.arrow"))
    parquet.write_table(table, folder / "x.parquet")
    found.append(outcome(name, options, folder / "x.parquet"))
    assert all(one == found[0] for one in found)


@settings(deadline=None, max_examples=150)
@given(example=examples([ANY]))
def test_json_lines_of_any_values_are_read_or_refused(example, tmp_path_factory):
    name, options, rows = example
    path = tmp_path_factory.mktemp("rows") / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert outcome(name, options, path)


@pytest.mark.parametrize("tags", ["BB", {"0": "B-X"}, [["B-X"], ["O"]]])
def test_words_and_tags_are_lists(tmp_path, tags):
    (tmp_path / "x.jsonl").write_text(json.dumps({"tokens": ["a", "b"], "ner_tags": tags}))
    with pytest.raises(UserError, match="x.jsonl:1: it must have a list `tokens` and a list"):
        open_task("ner", both(tmp_path / "x.jsonl"), TOKENIZER)
