"""Every form of a query with candidates, and rows that are refused with their file and line."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.tasks.candidates import Candidates, Columns, candidates_of, read_candidates
from bert_jax.text.bad_records import BadRecords

A_TO_C = ["a", "b", "c"]
FORMS = {
    "texts": {"anchor": "q", "positive": "a", "negative_2": "c", "negative_1": "b"},
    "lists": {"query": "q", "positive": ["a"], "negative": ["b", "c"]},
    "bge": {"query": "q", "pos": ["a"], "neg": ["b", "c"]},
    "a text that is missing": {"anchor": "q", "positive": "a", "neg": ["b", "c"], "negative": None},
    "labels": {"query": "q", "positive": ["a"], "negative": ["b", "c"], "labels": [1, 0, 0]},
}


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS)
def test_positives_and_negatives(values):
    found = candidates_of({name: value or "" for name, value in values.items()})
    places = [0, 1, 2] if "labels" in values else None
    assert found == Candidates("q", A_TO_C, [1, 0, 0], None, places)


SCORED = {
    "one list": {"anchor": "q", "positive": "a", "negative": ["b", "c"], "scores": [3, 1, -2]},
    "apart": {"anchor": "q", "positive": ["a"], "negative": ["b", "c"]}
    | {"positive_scores": [3], "negative_scores": [1, -2]},
    "bge": {
        "query": "q",
        "pos": ["a"],
        "neg": ["b", "c"],
        "pos_scores": [3],
        "neg_scores": [1, -2],
    },
    "csv": {"anchor": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}
    | {"scores": "[3, 1, -2]"},
}


@pytest.mark.parametrize("values", SCORED.values(), ids=SCORED)
def test_scores_of_positives_and_negatives(values):
    assert candidates_of(values) == Candidates("q", A_TO_C, [1, 0, 0], [3, 1, -2], None)


def test_a_list_of_documents_is_a_ranking_whose_order_is_kept_beside():
    row = {"query": "q", "docs": ["a", "b", "c"], "labels": [0, 2, 0.5], "scores": [7, 8, 9]}
    expected = Candidates("q", ["b", "c", "a"], [2, 0.5, 0], [8, 9, 7], [1, 2, 0])
    assert candidates_of(row) == expected
    # Without labels the teacher's best is the positive.
    del row["labels"]
    expected = Candidates("q", ["c", "a", "b"], [1, 0, 0], [9, 7, 8], [2, 0, 1])
    assert candidates_of(row) == expected


def test_pairs_and_differences_of_scores():
    pair = {"question": "q", "text": "a"}
    columns = Columns("question", "text")
    assert candidates_of(pair | {"label": "0.25"}, columns) == Candidates(
        "q", ["a"], [0.25], None, [0]
    )
    assert candidates_of(pair | {"score": "-7"}, columns) == Candidates("q", ["a"], [1], [-7], None)
    triple = {"query": "q", "positive": "a", "negative": "b", "score": "3.5"}
    assert candidates_of(triple).scores == [3.5, 0]


def test_columns_are_as_given():
    row = {"negative": "no", "ask": "q", "answer": "a", "wrong": "b", "worse": ["c"]}
    found = candidates_of(row, Columns("ask", "answer", ("wrong", "worse")))
    assert found == Candidates("q", A_TO_C, [1, 0, 0], None, None)


ROW = {"query": "q", "documents": ["a", "b"], "labels": [1, 0]}
BAD = {
    "has no field anchor or query; its fields: documents, labels": {"query": None},
    "has no field positive or .* document; its fields: query, labels": {"documents": None},
    "a text is empty": {"documents": ["a", " "]},
    "documents has something else than texts": {"documents": ["a", ["b"]]},
    "labels has 1 values for 2 documents": {"labels": [1]},
    "labels has no values for 2 documents": {"labels": {"a": 1}},
    "labels has something else than numbers: ": {"labels": [1, None]},
    "scores has 3 values for 2 documents": {"scores": [1, 0, 0]},
    r"scores has something else than numbers: \[1, nan\]": {"scores": [1, float("nan")]},
    "the texts of documents have neither labels nor scores": {"labels": None},
    "negative_scores has 2 values for 1 documents": {"documents": None, "labels": None}
    | {"positive": "a", "negative": "b", "positive_scores": 3, "negative_scores": [1, 2]},
}


@pytest.mark.parametrize(("problem", "change"), BAD.items(), ids=BAD)
def test_bad_rows_are_refused_by_line_or_skipped_and_counted(problem, change, tmp_path):
    rows = [ROW, {name: x for name, x in (ROW | change).items() if x is not None}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UserError, match=f"rows.jsonl:2: .*{problem}"):
        list(read_candidates(path, BadRecords()))
    bad_rows = BadRecords("skip")
    assert len(list(read_candidates(path, bad_rows))) == 1 and bad_rows.dropped.total() == 1


def test_parquet_has_the_same_rows(tmp_path):
    rows = [SCORED["apart"], {"anchor": "r", "positive": ["a"], "negative": []}]
    rows[1] |= {"positive_scores": [1], "negative_scores": []}
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = list(read_candidates(tmp_path / "rows.parquet", BadRecords()))
    assert found == list(map(candidates_of, rows))
    assert found[1] == Candidates("r", ["a"], [1], [1], None)
