"""Tables that pandas writes in different formats have the same rows, labels and refusals."""

import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import both, open_task

pytestmark = pytest.mark.outside
pandas = pytest.importorskip("pandas")

TOKENIZER = make_tokenizer()
# Columns of labels, with what pandas makes of gaps: None, NaN, <NA>, floats for integers.
LABELS = {
    "text": ["x", "y", None, "x"],
    "number": [1, 2, None, 1],
    "flag": [True, False, None, True],
    "integer": pandas.array([1, 2, None, 1], dtype="Int64"),
    "category": pandas.Categorical(["x", "y", None, "x"]),
    "names": [["x", "y"], [], None, ["x"]],
    "vector": [[1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]],
    "floats": [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]],
    "arrays": [np.array(["x", "y"]), np.array(["y", "z"]), np.array(["z", "x"])] * 2,
}
SEVERAL = ("names", "vector", "floats", "arrays")


def write(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".json":
        frame.to_json(path, orient="records")
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("column", LABELS)
def test_rows_are_the_same_in_all_formats(tmp_path, column):
    labels = pandas.Series(LABELS[column][:4])
    frame = pandas.DataFrame({"text": ["a b", "c", "d", "a"], "label": labels})
    found = {}
    for suffix in ("csv", "tsv", "jsonl", "json", "parquet", "csv.gz"):
        path = tmp_path / f"x.{suffix}"
        write(frame, path)
        options = {"bad_rows": "skip", "multi_label": column in SEVERAL}
        try:
            task = open_task("table", both(path), TOKENIZER, **options)
            rows = task.rows("train")
        except UserError as error:
            # Without commas between them, numpy's texts are no list.
            assert column == "arrays" and suffix in ("csv", "tsv", "csv.gz"), error
            continue
        found[suffix] = task.labels, rows.ids, rows.labels_N.tolist()
    assert (
        len({json.dumps([[*map(str.lower, names)], *rest]) for names, *rest in found.values()}) == 1
    )
    names, ids, labels = found["parquet"]
    # A row without a label is skipped, unless it may have none.
    assert ids == (["0", "1", "3"] if column not in SEVERAL else ["0", "1", "2", "3"])
    if column in ("vector", "floats"):
        assert labels == [list(row) for row in LABELS[column]] and names[0] == "LABEL_0"
    if column == "names":
        assert labels == [[1, 1], [0, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_second_text_with_gaps(tmp_path, suffix):
    frame = pandas.DataFrame({"text": ["a", "b", "c"], "text_b": ["d", None, np.nan]})
    frame["label"] = ["x", "y", "x"]
    path = write(frame, tmp_path / f"x.{suffix}")
    with pytest.raises(UserError, match=rf"x.{suffix}:[23]: a sentence is empty"):
        open_task("table", both(path), TOKENIZER, text_b_column="text_b").rows("train")
    task = open_task("table", f"{both(path)},test={path}", TOKENIZER, text_b_column="text_b")
    assert [row.num_first < len(row.input_ids_L) for row in task.rows("test")] == [
        True,
        False,
        False,
    ]
