"""SWAG's and CommonsenseQA's files, rows of several choices, accuracy and predictions."""

import csv
import io
import json

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.multiple_choice import MultipleChoiceTask

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


def sequences(tokenizer, batch, n):
    """The rows of an example as pieces."""
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
    task = MultipleChoiceTask(str(tmp_path), tokenizer, max_seq_length=24)
    assert (task.head, task.splits, task.labels) == (
        "multiple_choice", ("validation",), ("A", "B", "C"),
    )  # fmt: skip
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
    task = MultipleChoiceTask(str(tmp_path), tokenizer, max_seq_length=24)
    outputs = {"logits": np.array([[0, 1, 0], [0, 1, 2]], np.float32)}
    assert task.score("validation", outputs) == {"accuracy": 0.5}
    path = tmp_path / task.predictions_name("validation")
    task.write_predictions("validation", outputs, path)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["id"], line["prediction"]) for line in lines] == [("q1", "B"), ("é2", "C")]
    e = np.e
    expected = {"A": 1 / (2 + e), "B": e / (2 + e), "C": 1 / (2 + e)}
    assert lines[0]["probabilities"] == pytest.approx(expected)


def test_swag(tmp_path, tokenizer):
    (tmp_path / "train.csv").write_text(swag(swag_row(), swag_row("0", sent1="Two\nlines")))
    (tmp_path / "test.csv").write_text(swag(swag_row()[:-1], header=HEADER[:-1]))
    task = MultipleChoiceTask(str(tmp_path), tokenizer, max_seq_length=24)
    assert task.splits == ("train", "test")
    assert task.labels == ("0", "1", "2", "3")
    batch = task.rows("train").take(np.array([0, 1]))
    assert batch["input_ids"].shape == (2, 4, 24)
    assert batch["labels"].tolist() == [2, 0]
    assert sequences(tokenizer, batch, 0)[3] == '[CLS] the " men " me ##t . [SEP] they d [SEP]'
    assert "labels" not in task.rows("test").take(np.array([0]))
    with pytest.raises(UserError, match="the test questions .* have no known answers"):
        task.score("test", {"logits": np.zeros((1, 4))})


def test_the_longer_of_context_and_choice_is_cut(tmp_path, write, tokenizer):
    write({"train.jsonl": [question(text="the " * 20, texts=("of " * 9, "of", "of of"))]})
    task = MultipleChoiceTask(str(tmp_path), tokenizer, max_seq_length=11)
    rows = sequences(tokenizer, task.rows("train").take(np.array([0])), 0)
    assert [(row.split().count("the"), row.split().count("of")) for row in rows] == [
        (4, 4), (7, 1), (6, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bad, words, reason",
    [
        ("{", "not a JSON object", "broken JSON"),
        ("[]", "not a JSON object", "broken JSON"),
        (question(key="D"), "its answer is 'D', not one of A, B, C", "unknown label"),
        (question(key=None), "its answer is None", "unknown label"),
        (question(text=" "), "question or a choice is empty", "empty sentence"),
        (question(texts=("a", "", "c")), "question or a choice is empty", "empty sentence"),
        (question(labels="AB", texts="ab"), "are A, B, but must be A, B, C", "other choices"),
        (question(labels="ABC", texts="ab"), "3 labels .* and 2 texts", "other choices"),
        (question(labels="ABB"), "a label of its own", "other choices"),
        (question(labels="A", texts="a"), "two or more", "other choices"),
        (question(text="\ud800"), "lone surrogate", "invalid UTF-8"),
        (question() | {"choices": ["a"]}, "no list of `label`s", "missing field"),
        (question() | {"question": None}, "no text `question`", "missing field"),
        (question(id=5), "no text `id`", "missing field"),
    ],
)
def test_bad_questions(tmp_path, write, tokenizer, bad, words, reason):
    write({"train.jsonl": [question(), bad]})
    with pytest.raises(UserError, match=rf"train.jsonl:2: .*{words}") as error:
        MultipleChoiceTask(str(tmp_path), tokenizer).rows("train")
    assert "data.bad_rows=skip" in str(error.value)
    task = MultipleChoiceTask(str(tmp_path), tokenizer, bad_rows="skip")
    assert len(task.rows("train")) == 1
    assert task.dropped == {reason: 1}


@pytest.mark.parametrize(
    "row, words, reason",
    [
        (swag_row("4"), "its answer is '4', not one of 0, 1, 2, 3", "unknown label"),
        (swag_row(sent1=""), "sent1 is empty", "empty sentence"),
        (swag_row(endings=["a", "b", " ", "d"]), "an ending is empty", "empty sentence"),
        (swag_row()[:-1], "11 columns instead of 12", "wrong number of columns"),
    ],
)
def test_bad_rows_of_swag(tmp_path, tokenizer, row, words, reason):
    (tmp_path / "val.csv").write_text(swag(swag_row(), row))
    with pytest.raises(UserError, match=f"val.csv:3: {words}"):
        MultipleChoiceTask(str(tmp_path), tokenizer).rows("validation")
    task = MultipleChoiceTask(str(tmp_path), tokenizer, bad_rows="skip")
    assert len(task.rows("validation")) == 1
    assert task.dropped == {reason: 1}


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("train.jsonl", "\n", "no question that can be used"),
        ("train.csv", swag(), "no question that can be used"),
        ("train.csv", swag(header=["sent1"]), "no column 'sent2'"),
        (
            "train.csv",
            swag([*swag_row(), "a fifth"], header=[*HEADER, "ending4"]),
            "train.csv:1: column 'ending4': this format has four endings, ending0 to ending3",
        ),
        ("x.jsonl", "{}", "has none of train.csv, train_rand_split.jsonl"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, tokenizer, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=words):
        MultipleChoiceTask(str(tmp_path), tokenizer).rows("train")


def test_a_test_set_loses_no_question(tmp_path, write, tokenizer):
    write({"test.jsonl": [question(key=None), question(text="")]})
    with pytest.raises(UserError, match="test.jsonl:2: its question or a choice is empty"):
        MultipleChoiceTask(str(tmp_path), tokenizer, bad_rows="skip").rows("test")


def test_there_is_none_in_tfds(tokenizer):
    with pytest.raises(UserError, match="tfds:swag, but TensorFlow Datasets has neither"):
        MultipleChoiceTask("tfds:swag", tokenizer)


def test_the_real_commonsense_qa(shared_data, real_tokenizer):
    tokenizer = real_tokenizer("bert-base-uncased")
    source = shared_data / "multiple_choice" / "commonsense_qa"
    task = MultipleChoiceTask(str(source), tokenizer, max_seq_length=64)
    rows = task.rows("validation")
    assert len(rows) == 1221 and task.labels == tuple("ABCDE")
    batch = rows.take(np.arange(len(rows)))
    assert batch["input_ids"].shape == (1221, 5, 64)
    logits = np.eye(5)[batch["labels"]]
    assert task.score("validation", {"logits": logits}) == {"accuracy": 1.0}
