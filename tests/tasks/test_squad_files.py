"""SQuAD's files: where they are looked for, what is read, what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.squad import Squad
from tests.tasks.small_squad import (
    CONTEXT,
    certain,
    load_tokenizer,
    make,
    question,
    squad,
    write,
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@pytest.mark.parametrize(
    "bad, words, reason",
    [
        (question(answers=[("The House", 0)]), "'The House' is not in the context", "answer not"),
        (question(answers=[("Senate", 5)]), "does not start at 5 .* but at 4", "wrong offset"),
        (question(answers=[("Senate", -66)]), "does not start at -66", "wrong offset"),
        (question(answers=[("", 0)]), "`text` is empty", "empty answer"),
        (question(answers=[("\u00ad", CONTEXT.index("\u00ad"))]), "has no token", "answer without"),
        (question(answers=()), "only SQuAD 2.0", "no answer"),
        (question(text=" "), "`question` is empty", "empty question"),
        (question(text="\ud800?"), "lone surrogate", "invalid UTF-8"),
        ({"id": "q1", "question": "Who?"}, "no list `answers`", "missing field"),
        ({"id": "q1", "answers": []}, "no text `question`", "missing field"),
        ({"question": "Who?", "answers": []}, r"qas\[1\]: it has no text `id`", "missing field"),
        (question() | {"answers": [{"text": "The"}]}, "whole number `answer_start`", "missing"),
        (question("q0"), "same id", "repeated id"),
        (question(is_impossible=True), "marked is_impossible, but has 1", "inconsistent"),
        ("?", r"qas\[1\]: a question should be an object", "missing field"),
    ],
)
def test_bad_questions(tmp_path, tokenizer, bad, words, reason):
    content = squad(question("q0"), bad)
    with pytest.raises(UserError, match=words) as error:
        make(tmp_path, tokenizer, content).rows("validation")
    message = str(error.value)
    assert str(tmp_path / "dev-v1.1.json") in message
    assert "question q" in message or "qas[1]" in message
    assert "data.bad_rows=skip" in message
    task = make(tmp_path, tokenizer, content, bad_rows="skip")
    assert len(task.rows("validation").questions.questions) == 1
    ((counted, number),) = task.dropped.items()
    assert counted.startswith(reason) and number == 1


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "is not whole JSON"),
        ("[]", "a list `data`"),
        ({"data": {}}, "a list `data`"),
        ({"data": [{"title": ""}]}, r"data\[0\] should be an object with a list `paragraphs`"),
        ({"data": [{"paragraphs": [{}]}]}, r"data\[0\].paragraphs\[0\] should be an object"),
        (squad(), "no question that can be used"),
        (squad(question(), context=None), "no text `context`"),
        (squad(question(), context=" "), "`context` is empty"),
    ],
)
def test_bad_files(tmp_path, tokenizer, content, words):
    with pytest.raises(UserError, match=words) as error:
        make(tmp_path, tokenizer, content).rows("validation")
    assert "dev-v1.1.json" in str(error.value)


def test_bytes_that_are_no_text(tmp_path, tokenizer):
    (tmp_path / "dev-v1.1.json").write_bytes(b'{\n"data": "\xff"}')
    with pytest.raises(UserError, match="dev-v1.1.json:2: not valid UTF-8"):
        Squad(str(tmp_path), tokenizer).rows("validation")


class TestTheVersionIsTheOneThatTheConfigSays:
    """Else 1.1 would be trained on and scored under the recipe of 2.0."""

    def test_of_two_in_one_folder_its_files_are_taken(self, tmp_path, tokenizer):
        impossible = question("b", answers=(), is_impossible=True)
        write(tmp_path, squad(question(), version="1.1"), "dev-v1.1.json")
        write(tmp_path, squad(question(), impossible, version="v2.0"), "dev-v2.0.json")
        for version, count in (("1.1", 1), ("2.0", 2)):
            task = Squad(str(tmp_path), tokenizer, version=version)
            questions = task.rows("validation").questions
            assert questions.with_no_answer == (version == "2.0")
            assert len(questions.questions) == count

    @pytest.mark.parametrize("said", ["2.0", "v2.0", None])
    def test_a_file_of_2_0_under_1_1(self, tmp_path, tokenizer, said):
        """Without a version it tells by its questions."""
        content = squad(question(), question("b", is_impossible=False), version=said)
        with pytest.raises(UserError, match=r"is of SQuAD 2.0, but .* is 1.1 .*squad.py:2.0\)"):
            make(tmp_path, tokenizer, content).rows("validation")

    def test_a_file_of_1_1_under_2_0(self, tmp_path, tokenizer):
        path = write(tmp_path, squad(question()), "dev.json")
        with pytest.raises(UserError, match=f"{path} is of SQuAD 1.1, but config.squad.version"):
            Squad(str(tmp_path), tokenizer, version="2.0").rows("validation")

    def test_a_file_that_does_not_say_is_either(self, tmp_path, tokenizer):
        content = squad({"id": "t", "question": "Who?"}, version=None)
        write(tmp_path, content, "test.json")
        for version in ("1.1", "2.0"):
            questions = Squad(str(tmp_path), tokenizer, version=version).rows("test").questions
            assert questions.with_no_answer == (version == "2.0")

    def test_another_version(self, tmp_path, tokenizer):
        with pytest.raises(UserError, match="config.squad.version is '3'; it must be one of 1.1, "):
            make(tmp_path, tokenizer, squad(question()), version="3")


def test_sources(tmp_path, tokenizer):
    train, test = squad(question()), squad({"id": "t", "question": "Who?"})
    for name, content in (("train-v1.1.json", train), ("test.json", test), ("x.json", train)):
        write(tmp_path, content, name)
    task = Squad(str(tmp_path), tokenizer)
    assert task.splits == ("train", "test")
    assert "start_positions" in task.rows("train").take(np.array([0]))
    assert "start_positions" not in task.rows("test").take(np.array([0]))
    outputs = {name: np.zeros((1, 384)) for name in ("start_logits", "end_logits")}
    with pytest.raises(UserError, match="the test questions .* do not tell their answers"):
        task.score("test", outputs)
    path = tmp_path / task.predictions_name("test")
    task.write_predictions("test", outputs, path)
    assert list(json.loads(path.read_text())) == ["t"]
    with pytest.raises(UserError, match="must be named like test_predictions.json"):
        task.write_predictions("test", outputs, tmp_path / "answers.json")
    # None of a test set is left out.
    write(tmp_path, squad({"id": "t", "question": ""}), "test.json")
    with pytest.raises(UserError, match="question t: its `question` is empty"):
        Squad(str(tmp_path), tokenizer, bad_rows="skip").rows("test")
    named = Squad(f"train={tmp_path}/x.json, validation={tmp_path}/x.json", tokenizer)
    assert named.splits == ("train", "validation")
    assert len(named.rows("validation")) == 1


@pytest.mark.parametrize(
    "source, words",
    [
        ("{}/nothing", "there is no such folder"),
        ("{}", "has none of train-v1.1.json"),
        ("{}/x.json", "a file: say of which split, as in validation="),
        ("dev={}/x.json", "SPLIT=FILE with a split of train, validation, test"),
        ("train={}/y.json", "there is no such file"),
    ],
)
def test_sources_that_are_not_there(tmp_path, tokenizer, source, words):
    write(tmp_path, squad(question()), "x.json")
    with pytest.raises(UserError, match=words):
        Squad(source.format(tmp_path), tokenizer)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"doc_stride": 0}, "squad.doc_stride is 0"),
        (
            {"max_query_length": 93},
            "squad.max_query_length is 93 and config.data.max_seq_length 96",
        ),
        ({"n_best": 0}, "squad.n_best is 0"),
        ({"max_answer_length": 0}, "squad.max_answer_length is 0"),
        ({"bad_rows": "keep"}, "data.bad_rows is 'keep'"),
    ],
)
def test_options_out_of_range(tmp_path, tokenizer, options, words):
    with pytest.raises(UserError, match=words):
        make(tmp_path, tokenizer, squad(question()), **options).rows("validation")


def test_tfds(monkeypatch, tokenizer):
    import tensorflow_datasets as tfds

    def example(id, texts, starts):
        answers = {"text": np.array(texts, object), "answer_start": np.array(starts, np.int32)}
        question = {"id": id, "question": b"Who?", "context": CONTEXT.encode()}
        return question | {"answers": answers, "is_impossible": np.bool_(not texts)}

    splits = {
        "train": [example(b"a", [b"Senate"], [4])],
        "validation": [example(b"b", ["Café".encode(), b"The"], [18, 0]), example(b"c", [], [])],
    }
    builder = SimpleNamespace(
        info=SimpleNamespace(
            full_name="squad/v2.0/3.0.0", splits=splits, features=splits["train"][0]
        ),
        download_and_prepare=lambda: None,
        as_dataset=lambda split, shuffle_files: SimpleNamespace(
            as_numpy_iterator=lambda: iter(splits[split])
        ),
    )
    asked = []
    monkeypatch.setattr(tfds, "builder", lambda name: asked.append(name) or builder)
    with pytest.raises(UserError, match="squad/v2.0/3.0.0 is of SQuAD 2.0, but config.squad.vers"):
        Squad("tfds:squad/v2.0", tokenizer)
    asked.clear()
    task = Squad("tfds:squad/v2.0", tokenizer, version="2.0", max_seq_length=96)
    assert asked == ["squad/v2.0"]
    assert task.splits == ("train", "validation")
    rows = task.rows("validation")
    assert rows.questions.with_no_answer and len(rows.questions.contexts) == 1
    assert task.score("validation", certain(rows, [True, False]))["exact"] == 100
    splits["train"][0]["answers"]["answer_start"][0] = 3
    with pytest.raises(UserError, match=r"squad/v2.0/3.0.0 train:1, question a: .* but at 4"):
        Squad("tfds:squad/v2.0", tokenizer, version="2.0").rows("train")
    del splits["train"][0]["context"]
    with pytest.raises(UserError, match="squad/v2.0/3.0.0 has no field `context`; there is: id, q"):
        Squad("tfds:squad/v2.0", tokenizer)


def test_a_data_set_that_tfds_does_not_have(tokenizer):
    with pytest.raises(UserError, match="no data set 'squadd'"):
        Squad("tfds:squadd", tokenizer)
    assert not sources.is_prepared("tfds:squadd")


@pytest.mark.parametrize(
    "asked",
    [
        question(answers=[]),
        question(answers=[("The House", 7)]),
        question(answers=[], is_impossible=False),
    ],
)
def test_the_answers_of_a_test_set_are_not_read(tmp_path, tokenizer, asked):
    """They are withheld by whoever asks, each in a way of their own."""
    for version in ("1.1", "2.0"):
        write(tmp_path, squad(asked, version=version), "test.json")
        task = Squad(f"test={tmp_path / 'test.json'}", tokenizer, version=version)
        assert len(task.rows("test")) == 1
        assert "start_positions" not in task.rows("test").take(np.array([0]))
