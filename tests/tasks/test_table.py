"""The user's own tables."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.table import TableTask
from tests.interop.small_bert import make_tokenizer

TOKENIZER = make_tokenizer()


def write(folder, **files):
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return str(folder)


@pytest.fixture
def reviews(tmp_path):
    return write(
        tmp_path,
        train__csv='text,label\na b,good\n"c, d",bad\ne,so-so\nf,bad\n',
        dev__csv="text,label\na,bad\nb,good\n",
        test__csv="text\na\nb\n",
    )


def test_labels_are_the_training_files_in_order(reviews):
    task = TableTask(reviews, TOKENIZER)
    assert task.labels == ("bad", "good", "so-so") and task.metric == "accuracy"
    assert task.splits == ("train", "validation", "test")
    assert task.rows("train").labels_N.tolist() == [1, 0, 2, 0]
    scores = task.score("validation", {"logits": np.eye(3)[[0, 0]]})
    assert scores == {"accuracy": 0.5}, "no F1 of three"


def test_labels_as_given_and_numbers_in_their_order(reviews, tmp_path):
    task = TableTask(reviews, TOKENIZER, labels=("good,bad", "so-so"))
    assert task.labels == ("good", "bad", "so-so")
    write(tmp_path, train__csv="text,label\na,10\nb,9\nc,1\n", dev__csv="text,label\na,9\n")
    assert TableTask(str(tmp_path), TOKENIZER).labels == ("1", "9", "10")


def test_pairs_numbers_and_named_files(tmp_path):
    write(
        tmp_path,
        one__tsv="x\ty\tscore\na\tb\t1.5\nc\td\t-2\n",
        two__jsonl='{"x": "a", "y": "b", "score": 3}\n{"x": "a", "y": "c", "score": 4}\n',
    )
    task = TableTask(
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
    scores = task.score("validation", {"logits": np.array([[0.0], [9.0]])})
    assert scores["spearman"] == pytest.approx(1)
    assert scores["negative_mean_squared_error"] == -17


def test_predictions_with_probabilities(reviews, tmp_path):
    task = TableTask(reviews, TOKENIZER)
    logits = np.log(np.array([[0.2, 0.7, 0.1], [0.5, 0.25, 0.25]], np.float32))
    task.write_predictions("test", {"logits": logits}, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "index,prediction,p(bad),p(good),p(so-so)",
        "0,good,0.200000,0.700000,0.100000",
        "1,bad,0.500000,0.250000,0.250000",
    ]


def test_predicted_numbers_have_all_their_digits(tmp_path):
    write(
        tmp_path,
        train__csv="text,label\na,1\n",
        dev__csv="text,label\na,1\n",
        test__csv="text\na\nb\n",
    )
    task = TableTask(str(tmp_path), TOKENIZER, regression=True)
    logits = np.array([[1234567.0], [0.1]], np.float32)
    task.write_predictions("test", {"logits": logits}, tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == ["index,prediction", "0,1.234567e+06", "1,0.1"]


def test_the_index_of_a_row_is_its_place_in_the_file(reviews, tmp_path):
    """Whatever was left out before it, and for whichever reason."""
    write(tmp_path, dev__csv="text,label\na,bad\nb,bad,more\nc,bad\n\nd,ugly\ne,good\n")
    task = TableTask(reviews, TOKENIZER, bad_rows="skip")
    assert task.rows("validation").index_N == ["0", "2", "4"]
    write(tmp_path, train__jsonl='{"text": "a", "label": 1}\nnone\n\n{"text": "b", "label": 2}\n')
    source = f"train={tmp_path / 'train.jsonl'},validation={tmp_path / 'train.jsonl'}"
    assert TableTask(source, TOKENIZER, bad_rows="skip").rows("train").index_N == ["0", "2"]


@pytest.mark.parametrize(
    "options,said",
    [
        ({"label_column": "stars"}, "train.csv:1: no column 'stars'; the columns: text, label"),
        ({"labels": ("good", "bad")}, "train.csv:4: label is 'so-so', not one of the labels good"),
        ({"regression": True}, "train.csv:2: label is 'good', not a number"),
        ({"regression": True, "labels": ("a", "b")}, "a number has no labels"),
        ({"labels": ("good",)}, "config.table.labels is good; it must be two names or more"),
        ({"labels": ("good,bad,good",)}, "config.table.labels is good,bad,good; it must be two"),
        (
            {"metric": "matthews"},
            "config.table.metric is 'matthews'; .* it must be one of accuracy",
        ),
    ],
)
def test_what_does_not_fit(reviews, options, said):
    with pytest.raises(UserError, match=said):
        TableTask(reviews, TOKENIZER, **options).rows("train")


def test_an_unknown_label_of_the_validation(reviews, tmp_path):
    write(tmp_path, dev__csv="text,label\na,bad\nb,ugly\n")
    with pytest.raises(UserError, match=r"dev.csv:3: label is 'ugly', not one of .*bad, good"):
        TableTask(reviews, TOKENIZER).rows("validation")
    task = TableTask(reviews, TOKENIZER, bad_rows="skip")
    assert len(task.rows("validation")) == 1 and task.dropped == {"unknown label": 1}


@pytest.mark.parametrize("number", ["nan", "inf", "1e39", "1_000", "", "one"])
def test_what_is_no_number(tmp_path, number):
    write(tmp_path, train__csv=f"text,label\na,1e-3\nb,{number}\n", dev__csv="text,label\na,9\n")
    with pytest.raises(UserError, match=f"train.csv:3: label is '{number}', not a number"):
        TableTask(str(tmp_path), TOKENIZER, regression=True).rows("train")


@pytest.mark.parametrize(
    "row,said",
    [
        (b"b\xe9,y", "train.csv:3: not valid UTF-8"),
        (b"b,c,y", "train.csv:3: 3 columns instead of 2"),
    ],
)
def test_a_bad_row_is_reported_before_missing_labels(tmp_path, row, said):
    write(tmp_path, dev__csv="text,label\na,x\n")
    (tmp_path / "train.csv").write_bytes(b"text,label\na,x\n" + row + b"\n")
    with pytest.raises(UserError, match=said):
        TableTask(str(tmp_path), TOKENIZER)
    with pytest.raises(UserError, match="has 1 label.s. in column label"):
        TableTask(str(tmp_path), TOKENIZER, bad_rows="skip")


def test_paths_with_commas_and_equals_signs(reviews, tmp_path):
    files = {name: (tmp_path / name).read_text() for name in ("train.csv", "dev.csv")}
    folder = tmp_path / "a=b,c d"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert TableTask(str(folder), TOKENIZER).splits == ("train", "validation")
    named = TableTask(f"train={folder / 'train.csv'}, validation={folder / 'dev.csv'}", TOKENIZER)
    assert len(named.rows("train")) == 4 and len(named.rows("validation")) == 2
    with pytest.raises(UserError, match="config.data.input has two files of the split train"):
        TableTask(f"train={folder / 'train.csv'},train={folder / 'dev.csv'}", TOKENIZER)


def test_labels_are_the_same_with_blanks_around_them(tmp_path):
    write(tmp_path, train__csv="text,label\na,pos\nb,neg\nc, pos\n")
    write(tmp_path, dev__csv="text,label\na, neg\n")
    task = TableTask(str(tmp_path), TOKENIZER)
    assert task.labels == ("neg", "pos")
    assert task.rows("train").labels_N.tolist() == [1, 0, 1]
    assert task.rows("validation").labels_N.tolist() == [0]


def test_one_number_spelt_in_two_ways(tmp_path):
    rows = "".join(f'{{"text": "a", "label": {label}}}\n' for label in ("1", "0", "1.0"))
    write(tmp_path, train__jsonl=rows, dev__jsonl=rows)
    with pytest.raises(UserError, match="has the labels '1' and '1.0' in column label, which are"):
        TableTask(str(tmp_path), TOKENIZER)


def test_two_files_of_one_split(reviews, tmp_path):
    write(tmp_path, train__tsv="text\tlabel\na\tpos\nb\tneg\n")
    with pytest.raises(
        UserError, match="both train.tsv and train.csv may be the train split; name"
    ):
        TableTask(str(tmp_path), TOKENIZER)


def test_data_sets_of_tensorflow_are_not_tables():
    with pytest.raises(UserError, match="is tfds:imdb_reviews, but config.task=table reads files"):
        TableTask("tfds:imdb_reviews", TOKENIZER)


def test_files_that_are_not_enough(tmp_path):
    write(tmp_path, train__csv="text,label\na,x\nb,x\n")
    with pytest.raises(UserError, match=r"has no validation file \(such as validation.tsv\)"):
        TableTask(str(tmp_path), TOKENIZER)
    write(tmp_path, dev__csv="text,label\na,x\n")
    with pytest.raises(UserError, match="has 1 label.s. in column label"):
        TableTask(str(tmp_path), TOKENIZER)
