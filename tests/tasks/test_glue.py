"""GLUE's files, labels, metrics and submissions."""

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.tasks.glue import SPECS
from bert_jax.text.bad_records import BadRecords
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import open_task

TOKENIZER = make_tokenizer()
# The headers of the standard download, and a row of each.
FILES = {
    "CoLA": {
        "train.tsv": "gj04\t1\t\ta b c\ngj04\t0\t*\tb a\n",
        "dev.tsv": "gj04\t0\t*\tc\ngj04\t1\t\td\n",
        "test.tsv": "index\tsentence\n0\ta\n1\tb\n",
    },
    "STS-B": {
        "train.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t"
        "sentence2\tscore\n0\tx\tx\t2012\t1\tn\tn\ta\tb\t3.800\n",
        "dev.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t"
        "sentence2\tscore\n0\tx\tx\t2012\t1\tn\tn\ta\tb\t5.000\n1\tx\tx\t2012\t1\tn\tn\tc\td\t0\n",
        "test.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t"
        "sentence2\n0\tx\tx\t2012\t1\tn\tn\ta\tb\n",
    },
    "QQP": {
        "train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\n"
        "4\t5\t6\ta\n",
        "dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t0\n",
        "test.tsv": "id\tquestion1\tquestion2\n0\t\tb\n1\ta\tb\n",
    },
    "MNLI": {
        "train.tsv": "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\t1\ta\tb\tneutral\tneutral\n1\t1\ta\tc\tx\tcontradiction\n",
        "dev_matched.tsv": "index\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label\n"
        "0\ta\tb\tx\ty\tentailment\n",
        "dev_mismatched.tsv": "index\tsentence1\tsentence2\tgold_label\n0\ta\tb\tneutral\n",
        "test_matched.tsv": "index\tsentence1\tsentence2\n7\ta\tb\n",
        "test_mismatched.tsv": "index\tsentence1\tsentence2\n8\ta\tb\n",
    },
    "AX": {"AX.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n"},
    "RTE": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n",
        "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n",
    },
}


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    root = tmp_path_factory.mktemp("glue_data")
    for folder, files in FILES.items():
        (root / folder).mkdir()
        for name, content in files.items():
            (root / folder / name).write_text(content)
    return root


def make(glue, name, folder=None, **options):
    return open_task(name, glue / (folder or SPECS[name].folder), TOKENIZER, **options)


def labels(task, split):
    return task.rows(split).labels_N.tolist()


def logits_of(classes, num_labels):
    return {"logits": np.eye(num_labels, dtype=np.float32)[classes]}


PAIRS = "index\tsentence1\tsentence2\t"


@pytest.mark.parametrize(
    "name, file, content, words",
    [
        (
            "CoLA",
            "test.tsv",
            "sentence\tindex\na\t0\n",
            "test.tsv:2: the first column is 'sentence'",
        ),
        (
            "RTE",
            "train.tsv",
            f"{PAIRS}label\n0\ta\tb\tx\n",
            "train.tsv:2: label is 'x', not one of",
        ),
        (
            "RTE",
            "train.tsv",
            f"{PAIRS}label\n0\ta\t \tentailment\n",
            "train.tsv:2: a sentence is emp",
        ),
        ("RTE", "train.tsv", f"{PAIRS}label\n", "the train split .*train.tsv. has no rows"),
        (
            "STS-B",
            "train.tsv",
            f"{PAIRS}score\n0\ta\tb\t-0.5\n",
            "'-0.5', not a number from 0 to 5",
        ),
        ("RTE", "train.tsv", None, r"has no train split \(train.tsv, train.jsonl"),
    ],
)
def test_files_that_are_refused(write, tmp_path, name, file, content, words):
    files = FILES[name] | {file: content}
    write({known: text for known, text in files.items() if text})
    with pytest.raises(UserError, match=words):
        open_task(name.lower().replace("-", ""), tmp_path, TOKENIZER).rows(file[:-4])


def test_cola_has_a_header_only_in_its_test_file(glue):
    task = make(glue, "cola")
    assert task.splits == ("train", "validation", "test")
    assert labels(task, "train") == [1, 0] and labels(task, "test") == [-1, -1]
    assert task.labels == ("unacceptable", "acceptable") and task.metric == "matthews"
    ids = task.rows("train").take(np.array([0]))["input_ids"][0]
    assert TOKENIZER.decode(ids[1:4]) == "a b c"
    assert task.score(task.rows("validation"), logits_of([0, 1], 2))["matthews"] == 1


def test_stsb_is_a_regression(glue, tmp_path):
    task = make(glue, "stsb")
    assert task.labels == () and labels(task, "train") == pytest.approx([3.8])
    scores = task.score(task.rows("validation"), {"logits": np.array([[4.0], [1.0]], np.float32)})
    assert scores["pearson_spearman"] == pytest.approx(1) and task.metric in scores
    assert scores["negative_mean_squared_error"] == -1
    task.write_predictions(
        task.rows("test"), {"logits": np.array([[5.4]], np.float32)}, tmp_path / "x"
    )
    assert (tmp_path / "x").read_text() == "index\tprediction\n0\t5.000\n"


def test_mnli_has_matched_mismatched_and_diagnostic_sets(glue, write, tmp_path):
    task = make(glue, "mnli")
    assert task.splits == (
        "train",
        "validation_matched",
        "validation_mismatched",
        "test_matched",
        "test_mismatched",
        "test_ax",
    )
    assert labels(task, "train") == [2, 0] and labels(task, "validation_matched") == [1]
    names = {split: task.predictions_name(split) for split in task.splits if "test" in split}
    assert names == {
        "test_matched": "MNLI-m.tsv",
        "test_mismatched": "MNLI-mm.tsv",
        "test_ax": "AX.tsv",
    }
    task.write_predictions(task.rows("test_matched"), logits_of([1], 3), tmp_path / "m")
    assert (tmp_path / "m").read_text() == "index\tprediction\n7\tentailment\n"
    assert len(make(glue, "ax", "MNLI").rows("test_ax")) == 2
    write(FILES["MNLI"], "MNLI")
    assert "test_ax" not in make(tmp_path, "mnli").splits
    with pytest.raises(UserError, match=r"has no test_ax split \(../AX/AX.tsv"):
        make(tmp_path, "ax", "MNLI")
    write({"diagnostic.tsv": "index\tsentence1\tsentence2\n0\ta\tb\n"}, "AX")
    assert len(make(tmp_path, "ax", "MNLI").rows("test_ax")) == 1


def test_bad_rows_of_qqp_except_in_the_test_set(glue):
    with pytest.raises(UserError, match=r"train.tsv:3: 4 columns instead of 6"):
        make(glue, "qqp").rows("train")
    task = make(glue, "qqp", bad_rows="skip")
    assert len(task.rows("train")) == 1
    assert task.dropped == {"train": {"wrong number of columns": 1}}
    assert len(task.rows("test")) == 2, "rows with an empty question must be kept"
    assert task.predictions_name("test") == "QQP.tsv"


def test_numbers_of_the_hub_are_its_classes_and_not_those_of_the_logits(write, tmp_path):
    """mnli of the Hub is numbered otherwise than run_classifier.py's labels."""
    pair = {"premise": "a", "hypothesis": "b"}
    classes = [0, 1, 2, "0", "neutral"]
    rows = [pair | {"label": label, "idx": i} for i, label in enumerate(classes)]
    test = [pair | {"label": -1, "idx": idx} for idx in (7, 5)]
    files = {"train.jsonl": rows, "validation_matched.jsonl": rows[:1]}
    write(files | {"test_matched.jsonl": test}, "mnli")
    write({"test.jsonl": test[:1]}, "ax")
    task = open_task("mnli", tmp_path / "mnli", TOKENIZER)
    assert task.labels == ("contradiction", "entailment", "neutral")
    assert [task.labels[i] for i in labels(task, "train")] == [
        "entailment", "neutral", "contradiction", "entailment", "neutral"
    ]  # fmt: skip
    assert len(task.rows("test_ax")) == 1
    task.write_predictions(task.rows("test_matched"), logits_of([1, 2], 3), tmp_path / "m")
    assert (tmp_path / "m").read_text() == "index\tprediction\n7\tentailment\n5\tneutral\n"
    # A test set of the Hub is not scored.
    with pytest.raises(UserError, match="label is '-1', not one of the labels contradiction, "):
        task.read(tmp_path / "mnli" / "test_matched.jsonl", "validation_matched", BadRecords())
    write({"test_matched.jsonl": [pair]}, "mnli")
    with pytest.raises(UserError, match="test_matched.jsonl:1: field 'idx' is missing"):
        open_task("mnli", tmp_path / "mnli", TOKENIZER).rows("test_matched")


@pytest.mark.parametrize(
    "name,rows,positive",
    [
        # Counts and shares of the standard download (Wang et al. 2019, table 1, for train).
        ("cola", {"train": 8551, "validation": 1043, "test": 1063}, 0.7044),
        ("mrpc", {"train": 3668, "validation": 408, "test": 1725}, 0.6745),
        ("stsb", {"train": 5749, "validation": 1500, "test": 1379}, None),
    ],
)
def test_the_real_files(shared_data, name, rows, positive):
    folder = shared_data / "glue" / SPECS[name].folder
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    task = open_task(name, folder, TOKENIZER, max_seq_length=128)
    assert {split: len(task.rows(split)) for split in task.splits} == rows
    if positive:
        assert task.rows("train").labels_N.mean() == pytest.approx(positive, abs=1e-4)
    else:
        assert 0 <= task.rows("train").labels_N.min() <= task.rows("train").labels_N.max() <= 5
