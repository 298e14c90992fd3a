"""Tasks on the user's own tables."""

import csv
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.tasks import make_task
from bert_jax.text.bad_records import BadRecords
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import both, open_task

TOKENIZER = make_tokenizer()


@pytest.fixture
def reviews(write):
    return write(
        {
            "train.csv": 'text,label\na b,good\n"c, d",bad\ne,so-so\nf,bad\n',
            "dev.csv": "text,label\na,bad\nb,good\n",
            "test.csv": "text\na\nb\n",
        }
    )


def test_labels_are_the_sorted_labels_of_the_training_file(reviews):
    task = open_task("table", reviews, TOKENIZER)
    assert task.labels == ("bad", "good", "so-so") and task.metric == "accuracy"
    assert task.splits == ("train", "validation", "test")
    assert task.rows("train").labels_N.tolist() == [1, 0, 2, 0]
    scores = task.score(task.rows("validation"), {"logits": np.eye(3)[[0, 0]]})
    assert scores["accuracy"] == 0.5 and "f1" not in scores, "F1 needs two labels"
    # Of the training rows, "bad" is the most common.
    assert task.baseline(task.rows("validation"))["accuracy"] == 0.5


def test_given_labels_and_numeric_order(reviews, tmp_path, write):
    task = open_task("table", reviews, TOKENIZER, labels=("good,bad", "so-so"))
    assert task.labels == ("good", "bad", "so-so")
    assert task.class_counts() == {"good": 1, "bad": 2, "so-so": 1}
    task = open_task("table", reviews, TOKENIZER, labels=(r"good\, or bad,so-so",))
    assert task.labels == ("good, or bad", "so-so")
    write({"train.csv": "text,label\na,10\nb,9\nc,1\n", "dev.csv": "text,label\na,9\n"})
    assert open_task("table", tmp_path, TOKENIZER).labels == ("1", "9", "10")


def test_pairs_numbers_and_named_files(tmp_path, write):
    write(
        {
            "one.tsv": "x\ty\tscore\na\tb\t1.5\nc\td\t-2\n",
            "two.jsonl": '{"x": "a", "y": "b", "score": 3}\n{"x": "a", "y": "c", "score": 4}\n',
        }
    )
    task = open_task(
        "table",
        f"train={tmp_path / 'one.tsv'},validation={tmp_path / 'two.jsonl'}",
        TOKENIZER,
        text_column="x",
        text_b_column="y",
        label_column="score",
        regression=True,
        metric="spearman",
    )
    assert task.labels == () and task.metric == "spearman"
    assert task.rows("train").labels_N.tolist() == [1.5, -2]
    assert task.rows("train").take(np.array([0]))["token_type_ids"].sum() == 2
    scores = task.score(task.rows("validation"), {"logits": np.array([[0.0], [9.0]])})
    assert scores["spearman"] == pytest.approx(1)
    assert scores["negative_mean_squared_error"] == -17


def test_predictions_with_probabilities(reviews, tmp_path):
    task = open_task("table", reviews, TOKENIZER)
    logits = np.log(np.array([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]], np.float32))
    task.write_predictions(task.rows("test"), {"logits": logits}, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "index,prediction,p(bad),p(good),p(so-so)",
        "0,good,0.200000,0.700000,0.100000",
        "1,bad,0.500000,0.250000,0.250000",
    ]


def test_ids_count_skipped_rows(reviews, tmp_path, write):
    """The id of a row does not depend on the reason for which earlier rows are skipped."""
    write({"dev.csv": "text,label\na,bad\nb,bad,more\nc,bad\n\nd,ugly\ne,good\n"})
    task = open_task("table", reviews, TOKENIZER, bad_rows="skip")
    assert task.rows("validation").ids == ["0", "2", "4"]
    write({"train.jsonl": '{"text": "a", "label": 1}\nnone\n\n{"text": "b", "label": 2}\n'})
    source = f"train={tmp_path / 'train.jsonl'},validation={tmp_path / 'train.jsonl'}"
    assert open_task("table", source, TOKENIZER, bad_rows="skip").rows("train").ids == ["0", "2"]


def test_rows_of_a_test_split_are_never_skipped(reviews, write):
    write({"test.csv": "text,label\na,bad,more\n"})
    with pytest.raises(UserError, match="test.csv:2: 3 columns instead of 2$"):
        open_task("table", reviews, TOKENIZER, bad_rows="skip").rows("test")


@pytest.mark.parametrize(
    "options,said",
    [
        (
            {"label_column": "stars"},
            "train.csv:1: no column is named 'stars'; the columns are: text, label",
        ),
        ({"labels": ("good", "bad")}, "train.csv:4: label is 'so-so', not one of the labels good"),
        ({"regression": True}, "train.csv:2: label is 'good', not a number"),
        (
            {"metric": "matthews"},
            "config.table.metric is 'matthews'; .* it must be one of accuracy",
        ),
    ],
)
def test_inconsistent_options_are_refused(reviews, options, said):
    with pytest.raises(UserError, match=said):
        open_task("table", reviews, TOKENIZER, **options).rows("train")


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("train.csv", "text,label\na,x\nb,x\n", "has 1 different labels in column label"),
        ("train.csv", "text,label\na,x\nb,c,y\n", "train.csv:3: 3 columns instead of 2"),
        ("train.tsv", "text\tlabel\na\tx\n", "both train.tsv and train.csv may be the train split"),
        (
            "dev.csv",
            "text,label\na,ugly\n",
            "dev.csv:2: label is 'ugly', not one of the labels bad",
        ),
        ("train.csv", None, r"has no train split \(train.tsv, "),
    ],
)
def test_unsuitable_files_are_refused(reviews, tmp_path, name, content, words):
    (tmp_path / name).write_text(content) if content else (tmp_path / name).unlink()
    with pytest.raises(UserError, match=words):
        open_task("table", reviews, TOKENIZER).rows("validation")


def test_spaces_around_labels_and_digits_of_predictions(tmp_path, write):
    write({"train.csv": "text,label\na,5\nb,2\nc, 5\n", "dev.csv": "text,label\na, 2\n"})
    task = open_task("table", tmp_path, TOKENIZER)
    assert task.labels == ("2", "5") and task.rows("train").labels_N.tolist() == [1, 0, 1]
    assert task.rows("validation").labels_N.tolist() == [0]
    task = open_task("table", tmp_path, TOKENIZER, regression=True)
    outputs = {"logits": np.array([[1234567.0], [0.1], [2]], np.float32)}
    task.write_predictions(task.rows("train"), outputs, tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == ["index,prediction", "0,1.234567e+06", "1,0.1", "2,2.0"]


@pytest.mark.parametrize("number", ["nan", "1e39", "1_000", "one"])
def test_labels_that_are_not_numbers_are_refused(tmp_path, number, write):
    write({"train.csv": f"text,label\na,1e-3\nb,{number}\n", "dev.csv": "text,label\na,9\n"})
    with pytest.raises(UserError, match=f"train.csv:3: label is '{number}', not a number"):
        open_task("table", tmp_path, TOKENIZER, regression=True).rows("train")


def test_paths_with_commas_and_equals_signs(reviews, tmp_path):
    files = {name: (tmp_path / name).read_text() for name in ("train.csv", "dev.csv")}
    folder = tmp_path / "a=b,c d"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert open_task("table", folder, TOKENIZER).splits == ("train", "validation")
    named = open_task(
        "table", f"train={folder / 'train.csv'}, validation={folder / 'dev.csv'}", TOKENIZER
    )
    assert len(named.rows("train")) == 4 and len(named.rows("validation")) == 2
    with pytest.raises(UserError, match="has 'train=.*', but each part must be SPLIT=FILE with a"):
        open_task("table", f"train={folder / 'train.csv'},train={folder / 'dev.csv'}", TOKENIZER)


def test_several_labels_a_row(tmp_path, write):
    """They are lists in JSON lines, and separated in CSV."""
    write(
        {
            "train.jsonl": [
                {"text": "a", "label": ["red", "blue"]},
                {"text": "b", "label": []},
                {"text": "c", "label": ["red"]},
            ],
            "dev.csv": "text,label\na,red; blue\nb,\n",
            "test.csv": "text\na\n",
        }
    )
    task = open_task(
        "table", tmp_path, TOKENIZER, multi_label=True, label_separator=";", threshold=0.4
    )
    assert task.labels == ("blue", "red") and task.metric == "micro_f1"
    assert task.rows("train").labels_N.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert task.rows("validation").labels_N.tolist() == [[1, 1], [0, 0]]
    assert task.class_counts() == {"blue": 1, "red": 2}
    # A probability of 0.45 is above the threshold.
    outputs = {"logits": np.array([[-0.2, 3], [-3, -3]], np.float32)}
    assert task.score(task.rows("validation"), outputs)["accuracy"] == 1
    # Most training rows are red, and none of the others is.
    assert task.baseline(task.rows("validation"))["micro_f1"] == pytest.approx(2 * 1 / (2 + 2))
    task.write_predictions(task.rows("test"), {"logits": outputs["logits"][:1]}, tmp_path / "out")
    index, labels, *_ = (tmp_path / "out").read_text().splitlines()[1].split(",")
    assert (index, labels) == ("0", "blue;red")
    write({"dev.csv": "text,label\na,red;green\n"})
    task = open_task("table", tmp_path, TOKENIZER, multi_label=True, label_separator=";")
    with pytest.raises(UserError, match="dev.csv:2: label is 'green', not one of the labels blue"):
        task.rows("validation")


VECTORS = [[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]


def write_lists(path, lists, column="label"):
    """Writes rows with lists, which CSV has as the texts of `lists`."""
    rows = [{"text": "a b", column: value} for value in lists]
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["text", column])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.csv"])
@pytest.mark.parametrize("kind", [int, float, bool])
def test_vectors_have_a_number_for_each_label(tmp_path, name, kind):
    """They are what `transformers` trains on."""
    lists = [[kind(bit) for bit in vector] for vector in VECTORS]
    path = write_lists(tmp_path / name, lists)
    task = open_task("table", both(path), TOKENIZER, multi_label=True)
    assert task.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert task.rows("train").labels_N.tolist() == VECTORS
    named = open_task("table", both(path), TOKENIZER, multi_label=True, labels=("x,y,z",))
    assert named.labels == ("x", "y", "z") and named.rows("train").labels_N.tolist() == VECTORS
    # A file of any vectors has the form of the file of training.
    config = finetune_config("table")
    config.table.multi_label = True
    other = make_task(config, "", TOKENIZER, task.labels)
    one = write_lists(tmp_path / f"one-{name}", lists[1:2])
    assert other.read(one, "validation", BadRecords()).labels_N.tolist() == VECTORS[1:2]


@pytest.mark.parametrize(
    "lists, labels",
    [
        ([["x", "y"], ["x"], []], ("x", "y")),
        ([[3, 7], [3], []], ("3", "7")),
        # Classes by number, not vectors: other lengths, and none is repeated.
        ([[0, 1], [1], [0], []], ("0", "1")),
        ([[0, 2], [1, 0]], ("0", "1", "2")),
    ],
)
@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.csv"])
def test_lists_of_names_are_no_vectors(tmp_path, name, lists, labels):
    """Pandas writes lists into CSV as Python does, with single quotes."""
    task = open_task(
        "table", both(write_lists(tmp_path / name, lists)), TOKENIZER, multi_label=True
    )
    assert task.labels == labels
    expected = [[float(label in map(str, names)) for label in labels] for names in lists]
    assert task.rows("train").labels_N.tolist() == expected


@pytest.mark.parametrize(
    "lists, words",
    [
        ([["x", "y"], ["x", None]], "x.jsonl:2: label has None in its list"),
        ([["x", "y"], ["x", {"y": 1}]], "x.jsonl:2: label has {'y': 1} in its list"),
        ([[1.0, 0.0], [0.2, 0.8]], "x.jsonl:2: label has 0.2 in its list"),
        ([[1, 0, 0], [float("nan"), 0, 0]], "x.jsonl:2: label has nan in its list"),
        ([[1, 0, 0], [1, 1, 0], [1, 0]], "x.jsonl:3: label is '1, 0', not 3 numbers 0 or 1, one f"),
        ([[1, 0, 0], [1, 1, 0], [2, 0, 0]], "x.jsonl:3: label is '2, 0, 0', not 3 numbers"),
        ([[1, 0, 0], [1, 1, 0], None], "x.jsonl:3: label is '', not 3 numbers 0 or 1"),
        (["['x' 'y']", "x"], r"x.jsonl:1: label is \"\['x' 'y'\]\", not a list such as"),
        (["[x]", "y"], r"x.jsonl:1: label is '\[x\]', not a list such as"),
        ([{"x": 1}, {"x": 0}], "x.jsonl:1: label is {'x': 1}, not a list such as"),
        (["{'x': 1}", "y"], "x.jsonl:1: label is \"{'x': 1}\", not a list such as"),
    ],
)
def test_lists_that_are_no_labels_are_refused(tmp_path, lists, words):
    path = write_lists(tmp_path / "x.jsonl", lists)
    with pytest.raises(UserError, match=words):
        open_task("table", both(path), TOKENIZER, multi_label=True).rows("train")


def test_a_column_for_each_label(tmp_path, write):
    """As in Jigsaw's data."""
    write({"x.csv": "text,toxic,insult,id\na,1,0,7\nb,0,0.0,8\nc,True,1,9\n"})
    options = {"multi_label": True, "label_column": "toxic,insult"}
    path = both(tmp_path / "x.csv")
    task = open_task("table", path, TOKENIZER, **options)
    assert task.labels == ("toxic", "insult")
    assert task.rows("train").labels_N.tolist() == [[1, 0], [0, 0], [1, 1]]
    # Columns with the names of the labels are found by them, in any order; others by their place.
    other = open_task("table", path, TOKENIZER, **options, labels="insult,toxic")
    assert other.rows("train").labels_N.tolist() == [[0, 1], [0, 0], [1, 1]]
    other = open_task("table", path, TOKENIZER, **options, labels="i,t")
    assert other.rows("train").labels_N.tolist() == [[1, 0], [0, 0], [1, 1]]
    write({"x.csv": "text,toxic,insult,id\na,1,0,7\nb,-1,-1,8\n"})
    with pytest.raises(UserError, match="x.csv:3: toxic,insult is '-1, -1', not 2 numbers 0 or 1"):
        open_task("table", path, TOKENIZER, **options).rows("train")
    assert len(open_task("table", path, TOKENIZER, bad_rows="skip", **options).rows("train")) == 1
    with pytest.raises(UserError, match="no column is named 'threat'"):
        options["label_column"] = "toxic,threat"
        open_task("table", path, TOKENIZER, **options).rows("train")


def test_rows_without_a_label_are_skipped_and_give_no_label(tmp_path, write):
    write({"x.csv": "text,label\na,x\nb,\nc,y\n"})
    task = open_task("table", both(tmp_path / "x.csv"), TOKENIZER, bad_rows="skip")
    assert task.labels == ("x", "y") and task.rows("train").ids == ["0", "2"]
    with pytest.raises(UserError, match="x.csv:3: label is '', not one of the labels x, y"):
        open_task("table", both(tmp_path / "x.csv"), TOKENIZER).rows("train")


def test_labels_of_two_formats_are_the_same(tmp_path, write):
    rows = [{"text": "a", "label": True, "stars": 1}, {"text": "b", "label": False, "stars": 2.0}]
    write({"x.csv": "text,label,stars\na,True,1.0\nb,False,2.0\n", "x.jsonl": rows})
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    names = ("x.csv", "x.jsonl", "x.parquet")
    for column in ("label", "stars"):
        for first, second in itertools.permutations(names, 2):
            source = f"train={tmp_path / first},validation={tmp_path / second}"
            task = open_task("table", source, TOKENIZER, label_column=column)
            assert task.rows("train").labels_N.tolist() == [column == "label", column != "label"]
            assert task.rows("validation").labels_N.tolist() == task.rows("train").labels_N.tolist()


def test_balanced_classes_are_chosen_by_their_mean_f1(reviews, tmp_path, write):
    task = open_task("table", reviews, TOKENIZER, class_weights="balanced")
    assert task.metric == "macro_f1"
    given = open_task("table", reviews, TOKENIZER, class_weights="balanced", metric="accuracy")
    assert given.metric == "accuracy"
    write({"train.csv": "text,label\na,x\nb,y\n", "dev.csv": "text,label\na,x\nb,y\n"})
    task = open_task("table", tmp_path, TOKENIZER, class_weights="balanced")
    assert task.metric in task.score(task.rows("validation"), {"logits": np.eye(2)})


def test_parquet_and_arrow(tmp_path):
    rows = {"text": ["a b", "c"], "label": [["x"], ["x", "y"]], "stars": [1, 5]}
    table = pa.table(rows)
    parquet.write_table(table, tmp_path / "train.parquet")
    with ipc.new_stream(tmp_path / "dev.arrow", table.schema) as stream:
        stream.write_table(table)
    task = open_task("table", tmp_path, TOKENIZER, multi_label=True)
    for split in ("train", "validation"):
        assert task.rows(split).labels_N.tolist() == [[1, 0], [1, 1]]
    task = open_task("table", tmp_path, TOKENIZER, label_column="stars")
    assert task.labels == ("1", "5") and task.rows("train").labels_N.tolist() == [0, 1]
    with pytest.raises(UserError, match="train.parquet:1: 'label' is a list or an object, not a t"):
        open_task("table", tmp_path, TOKENIZER)


def test_classes_have_the_names_that_datasets_stores(tmp_path):
    label = {"names": ["good", "bad", "so-so"], "_type": "ClassLabel"}
    features = {"text": {"dtype": "string", "_type": "Value"}, "label": label}
    features["topics"] = {"feature": {"names": ["y", "x"], "_type": "ClassLabel"}, "_type": "List"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = {"text": ["a b", "c"], "label": [1, 0], "topics": [[1], [0, 1]]}
    parquet.write_table(pa.table(rows, metadata=metadata), tmp_path / "train.parquet")
    # `datasets` stores -1 for a label that is not known.
    rows["label"] = [1, -1]
    parquet.write_table(pa.table(rows, metadata=metadata), tmp_path / "dev.parquet")
    task = open_task("table", tmp_path, TOKENIZER)
    # In the order of their numbers.
    assert task.labels == ("good", "bad", "so-so")
    assert task.rows("train").labels_N.tolist() == [1, 0]
    with pytest.raises(UserError, match="dev.parquet:2: label is '', not one of the labels"):
        task.rows("validation")
    task = open_task("table", tmp_path, TOKENIZER, multi_label=True, label_column="topics")
    assert task.labels == ("y", "x") and task.rows("train").labels_N.tolist() == [[0, 1], [1, 1]]
