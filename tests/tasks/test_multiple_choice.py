"""SWAG's and CommonsenseQA's files, rows of several choices, accuracy and predictions."""

import csv
import io
import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from tests.tasks.conftest import both, open_task

HEADER = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
HEADER += ["ending0", "ending1", "ending2", "ending3", "label"]


def swag(*rows, header=HEADER):
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerows([header, *rows])
    return stream.getvalue()


def swag_row(label="2", sent1='The "men" met.', sent2="They", endings="abcd"):
    return ["0", "v", "1", f"{sent1} {sent2}", sent1, sent2, "gold", *endings, label]


def question(id="q", key="B", text="Where?", labels="ABC", texts=("here", "there", "far, far")):
    choices = {"label": list(labels), "text": list(texts)}
    return {"id": id, "question": text, "choices": choices} | ({"answerKey": key} if key else {})


def make(path, tokenizer, **options):
    return open_task("multiple_choice", both(path), tokenizer, max_seq_length=24, **options)


def sequences(tokenizer, batch, n):
    """Returns the rows of an example as pieces."""
    result = []
    for ids, types, mask in zip(
        batch["input_ids"][n], batch["token_type_ids"][n], batch["attention_mask"][n], strict=True
    ):
        length = mask.sum()
        assert (mask == (np.arange(len(mask)) < length)).all()
        assert not types[length:].any() and (ids[length:] == tokenizer.pad_id).all()
        pieces = [tokenizer.id_to_token(i) for i in ids[:length]]
        assert types[: pieces.index("[SEP]") + 1].sum() == 0
        assert types[pieces.index("[SEP]") + 1 : length].all()
        result.append(" ".join(pieces))
    return result


def test_commonsense_qa(tmp_path, write, tokenizer):
    first = question("q1")
    stem = {"question_concept": "x", "stem": "Who?"}
    choices = [{"label": label, "text": f"men {label}"} for label in "ABC"]
    second = {"id": "q2", "answerKey": "C", "question": stem | {"choices": choices}}
    write({"dev_rand_split.jsonl": [first, "", second]})
    task = make(tmp_path / "dev_rand_split.jsonl", tokenizer)
    assert (task.head, task.labels) == ("multiple_choice", ("A", "B", "C"))
    rows = task.rows("validation")
    batch = rows.take(np.array([1, 0]))
    assert {name: array.shape for name, array in batch.items()} == {
        "input_ids": (2, 3, 24),
        "token_type_ids": (2, 3, 24),
        "attention_mask": (2, 3, 24),
        "labels": (2,),
    }
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert batch["labels"].tolist() == [2, 1]
    assert sequences(tokenizer, batch, 1) == [
        "[CLS] where ? [SEP] here [SEP]",
        "[CLS] where ? [SEP] there [SEP]",
        "[CLS] where ? [SEP] far , far [SEP]",
    ]
    assert sequences(tokenizer, batch, 0)[0].startswith("[CLS] who ? [SEP] men a")


def test_scores_and_predictions(tmp_path, write, tokenizer):
    write({"dev.jsonl": [question("q1"), question("é2", "A")]})
    task = make(tmp_path / "dev.jsonl", tokenizer)
    outputs = {"logits": np.array([[0, 1, 0], [0, 1, 2]], np.float32)}
    assert task.score(task.rows("validation"), outputs) == {"accuracy": 0.5}
    assert task.baseline(task.rows("validation")).keys() == {"accuracy"}
    path = tmp_path / task.predictions_name("validation")
    task.write_predictions(task.rows("validation"), outputs, path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["id"], line["prediction"]) for line in lines] == [("q1", "B"), ("é2", "C")]
    e = np.e
    expected = {"A": 1 / (2 + e), "B": e / (2 + e), "C": 1 / (2 + e)}
    assert lines[0]["probabilities"] == pytest.approx(expected)


def test_swag(tmp_path, tokenizer):
    text = swag(swag_row(), swag_row("0", sent1="Two\nlines"))
    (tmp_path / "train.csv").write_text(text)
    (tmp_path / "val.csv").write_text(text)
    (tmp_path / "test.csv").write_text(swag(swag_row()[:-1], header=HEADER[:-1]))
    task = open_task("multiple_choice", tmp_path, tokenizer, max_seq_length=24)
    assert task.splits == ("train", "validation", "test")
    assert task.labels == ("0", "1", "2", "3")
    batch = task.rows("train").take(np.array([0, 1]))
    assert batch["input_ids"].shape == (2, 4, 24)
    assert batch["labels"].tolist() == [2, 0]
    assert sequences(tokenizer, batch, 0)[3] == '[CLS] the " men " me ##t . [SEP] they d [SEP]'
    assert task.rows("test").take(np.array([0]))["labels"] == [-1]


@pytest.mark.parametrize(
    "bad, words, reason",
    [
        ("{", "not a JSON object", "broken JSON"),
        (question(key="D"), "its answer is 'D', not one of A, B, C", "unknown label"),
        (question(texts=("a", "", "c")), "question or a choice is empty", "empty sentence"),
        (question(labels="AB", texts="ab"), "are A, B, but must be A, B, C", "other choices"),
        (question(labels="ABC", texts="ab"), "zip.. argument 2 is shorter", "another form"),
        (question(labels="ABB"), "two or more, all different", "other choices"),
        (question() | {"choices": ["a"]}, "TypeError: string indices", "another form"),
        (swag_row("4"), "its answer is '4', not one of 0, 1, 2, 3", "unknown label"),
        (swag_row(endings=["a", "b", " ", "d"]), "a choice is empty", "empty sentence"),
    ],
)
def test_bad_questions(tmp_path, write, tokenizer, bad, words, reason):
    is_csv = isinstance(bad, list)
    name = "train.csv" if is_csv else "train.jsonl"
    write({name: swag(swag_row(), bad) if is_csv else [question(), bad]})
    with pytest.raises(UserError, match=rf"{name}:[23]: .*{words}.*data.bad_rows=skip"):
        make(tmp_path / name, tokenizer)
    task = make(tmp_path / name, tokenizer, bad_rows="skip")
    assert len(task.rows("train")) == 1
    assert task.dropped == {"train": {reason: 1}}


def test_data_that_are_refused(tmp_path, write, tokenizer):
    write({"train.jsonl": [question()], "empty.jsonl": [], "test.jsonl": [question(text="")]})
    with pytest.raises(UserError, match="no rows that can be used"):
        make(tmp_path / "empty.jsonl", tokenizer)
    (tmp_path / "train.jsonl").rename(tmp_path / "dev.jsonl")
    with pytest.raises(UserError, match="config.data.input is .* no train split"):
        open_task("multiple_choice", tmp_path, tokenizer)
    source = f"{both(tmp_path / 'dev.jsonl')},test={tmp_path / 'test.jsonl'}"
    task = open_task("multiple_choice", source, tokenizer, bad_rows="skip")
    with pytest.raises(UserError, match="test.jsonl:1: its question or a choice is empty"):
        task.rows("test")


def test_the_real_commonsense_qa(shared_data, real_tokenizer):
    path = shared_data / "multiple_choice" / "commonsense_qa" / "dev_rand_split.jsonl"
    tokenizer = real_tokenizer("bert-base-uncased")
    task = open_task("multiple_choice", both(path), tokenizer, max_seq_length=64)
    rows = task.rows("validation")
    assert len(rows) == 1221 and task.labels == tuple("ABCDE")
    batch = rows.take(np.arange(len(rows)))
    assert batch["input_ids"].shape == (1221, 5, 64)
    logits = np.eye(5)[batch["labels"]]
    assert task.score(task.rows("validation"), {"logits": logits}) == {"accuracy": 1.0}


def test_swag_in_json_may_have_numbers_and_null(write, tokenizer):
    endings = {f"ending{i}": f"word {i}" for i in range(4)}
    rows = [{"sent1": "a man", "sent2": None, "label": 2, **endings}] * 2
    folder = write({"train.jsonl": rows, "val.jsonl": [rows[0], rows[1] | {"sent1": None}]})
    task = open_task("multiple_choice", folder, tokenizer, bad_rows="skip")
    names = ("sent1", "sent2", *endings, "label")
    row = ("a man", "", *endings.values(), "2")
    text = write({"train.csv": f"{','.join(names)}\n{','.join(row)}\n"}, "csv")
    same = open_task("multiple_choice", both(f"{text}/train.csv"), tokenizer)
    (batch, expected) = (x.rows("train").take(np.array([0])) for x in (task, same))
    assert all(np.array_equal(batch[name], expected[name]) for name in expected)
    assert len(task.rows("validation")) == 1 and task.dropped["validation"].total() == 1
