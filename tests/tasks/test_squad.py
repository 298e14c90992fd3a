"""SQuAD: its files and data sets, windows, answers, scores and predictions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax import tokenizers
from bert_jax.errors import UserError
from bert_jax.tasks.squad import SquadTask
from bert_jax.tasks.squad_answers import rank_answers
from bert_jax.tasks.squad_data import Context, Question
from bert_jax.tasks.squad_windows import Windows

CONTEXT = "The Senate met in Café New-York; 3 men\u00ad came: “José”, Ann, and 中国."


def question(id="q1", text="Who met?", answers=(("The Senate", 0),), **more):
    answers = [{"text": t, "answer_start": start} for t, start in answers]
    return {"id": id, "question": text, "answers": answers} | more


def squad(*questions, version="1.1", context=CONTEXT):
    content = {"data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
    return content | ({"version": version} if version else {})


@pytest.fixture
def make(write, tokenizer):
    """Writes dev.json and makes its task."""

    def make(content, tokenizer=tokenizer, **options):
        folder = write({"dev.json": content})
        return SquadTask(folder, tokenizer, **{"max_seq_length": 96, **options})

    return make


def asked(tokenizer, context=CONTEXT, text="Who met?"):
    (ids,) = tokenizer.encode_batch([text])
    return Question("0", ids, Context(context, *tokenizer.encode_aligned(context)))


def certain(rows, answers):
    """Logits that are certain of the labels, or of [CLS] if `answers` has no answer."""
    batch = rows.take(np.arange(len(rows)))
    shape = batch["input_ids"].shape
    result = {"start_logits": np.zeros(shape, np.float32), "end_logits": np.zeros(shape)}
    for row in range(len(rows)):
        for side in ("start", "end"):
            at = batch[f"{side}_positions"][row] if answers[rows.question_N[row]] else 0
            result[f"{side}_logits"][row, at] = 10
    return result


def test_answers_from_file_to_score(make, tmp_path):
    content = squad(
        question("a", answers=[("Senate", 4), ("The Senate", 0)]),
        question("b", answers=[("“José”", CONTEXT.index("“"))]),
        question("c", answers=[("3 men", CONTEXT.index("3"))]),
    )
    task = make(content)
    assert (task.head, task.labels, task.splits) == ("question_answering", (), ("validation",))
    rows = task.rows("validation")
    assert len(rows) == 3
    outputs = certain(rows, [True] * 3)
    assert task.score("validation", outputs) == {"exact_match": 100, "f1": 100}
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    # Accents, quotation marks and characters that the tokenizer drops are kept.
    assert predictions == {"a": "Senate", "b": "“José”", "c": "3 men"}
    assert not (tmp_path / "null_odds.json").exists()


def test_the_answers_to_a_2_0_file(make, tmp_path):
    content = squad(
        question("a", is_impossible=False),
        question("b", answers=(), is_impossible=True),
        question("c", is_impossible=False),
        version="v2.0",
    )
    task = make(content, version="2.0")
    outputs = certain(task.rows("validation"), [True, False, False])
    scores = task.score("validation", outputs)
    assert scores["exact"] == pytest.approx(100 * 2 / 3)
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50, 100)
    path = tmp_path / "predictions.json"
    task.write_predictions("validation", outputs, path)
    assert json.loads(path.read_text()) == {"a": "The Senate", "b": "", "c": ""}
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert odds["a"] == pytest.approx(-20) and odds["b"] > 0
    # predictions.json is written last.
    path.unlink()
    (tmp_path / "null_odds.json").unlink()
    (tmp_path / "null_odds.json").mkdir()
    with pytest.raises(OSError):
        task.write_predictions("validation", outputs, path)
    assert not path.exists()
    (tmp_path / "null_odds.json").rmdir()
    # With a threshold above the odds all answers are spans.
    task = make(content, version="2.0", null_threshold=100.0)
    task.write_predictions("validation", outputs, path)
    assert "" not in json.loads(path.read_text()).values()


@given(
    st.integers(0, 59), st.integers(1, 3), st.integers(12, 40), st.integers(1, 30),
    st.integers(1, 8),
)  # fmt: skip
def test_windows_hold_the_answers(tokenizer, first, number, length, stride, most):
    words = [f"w{i}" for i in range(60)]
    context, answer = " ".join(words), " ".join(words[first : first + number])
    ids, characters_Tx2 = tokenizer.encode_aligned(context)
    start = len(" ".join([*words[:first], ""]))
    inside = (characters_Tx2[:, 0] >= start) & (characters_Tx2[:, 1] <= start + len(answer))
    span = np.flatnonzero(inside)[[0, -1]].tolist()
    one = asked(tokenizer, context)._replace(answers=(answer,), span=tuple(span))
    rows = Windows(
        [one], tokenizer, max_seq_length=length, doc_stride=stride, max_query_length=most
    )
    # Every token has its most context in exactly one window.
    best = np.zeros(len(ids), int)
    for row in range(len(rows)):
        best[rows.first_token_N[row] + np.flatnonzero(rows.is_max_context(row))] += 1
    assert (best == 1).all()
    batch = rows.take(np.arange(len(rows)))
    holding = np.flatnonzero(batch["start_positions"])
    for row in holding:
        tokens = (batch[f"{side}_positions"][row] - rows.prefix_N[row] for side in ("start", "end"))
        a, b = rows.place(row, *tokens)
        assert context[a:b] == answer
    if stride + span[1] - span[0] < rows.num_tokens_N.max():
        assert len(holding)


def test_questions_without_known_answers(tokenizer):
    windows = Windows([asked(tokenizer), asked(tokenizer, "Ann")], tokenizer, max_seq_length=96)
    assert set(windows.take(np.arange(2))) == {"input_ids", "token_type_ids", "attention_mask"}
    logits = np.zeros((2, 96))
    logits[:, windows.prefix_N[0]] = 5
    first, second = rank_answers(windows, logits, logits, n_best=3)
    assert first.best_span[:3] == ("The", 0, 3)
    assert second.best_span.text == "Ann"


def test_logits_that_form_no_span(tokenizer):
    """The best start is the last token and the best end the first; a single token is chosen."""
    windows = Windows([asked(tokenizer)], tokenizer)
    first, last = windows.prefix_N[0], windows.prefix_N[0] + windows.num_tokens_N[0] - 1
    starts, ends = np.zeros((2, 1, 384))
    starts[0, last], ends[0, first] = 9, 8
    (ranking,) = rank_answers(windows, starts, ends, n_best=1)
    assert ranking.best_span.text == "."
    # A context without tokens has no answer.
    windows = Windows([asked(tokenizer, "\u00ad")], tokenizer)
    (ranking,) = rank_answers(windows, np.zeros((1, 384)), np.zeros((1, 384)))
    assert ranking.best_span is None and ranking.prediction(0.0) == ""


def test_one_span_and_no_answer_are_kept(tokenizer):
    windows = Windows([asked(tokenizer)], tokenizer)
    starts, ends = np.zeros((2, 1, 384))
    starts[0, 0] = ends[0, 0] = 5
    starts[0, windows.prefix_N[0]] = ends[0, windows.prefix_N[0]] = 4
    (ranking,) = rank_answers(windows, starts, ends, n_best=1, with_no_answer=True)
    assert [answer.text for answer in ranking.answers] == ["", "The"]
    assert ranking.null_odds == 2
    assert ranking.prediction(0.0) == "" and ranking.prediction(3.0) == "The"


def test_sentencepiece(make, tmp_path):
    """Its pieces hold the space before a word, which is not part of an answer."""
    tokenizer = tokenizers.train(
        "sentencepiece",
        [CONTEXT, "The men met the Senate; it came from New York."] * 20,
        vocab_size=44,
        lowercase=True,
        max_input_chars_per_word=200,
        sentencepiece_type="unigram",
    )
    answers = ["Senate", "Café New-York", "Ann", "“José”", "中国", "3"]
    content = squad(*(question(a, answers=[(a, CONTEXT.index(a))]) for a in answers))
    task = make(content, tokenizer)
    outputs = certain(task.rows("validation"), [True] * len(answers))
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text()) == {a: a for a in answers}


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
        ({"question": "Who?", "answers": []}, "no text `id`", "missing field"),
        (question() | {"answers": [{"text": "The"}]}, "whole number `answer_start`", "missing"),
        (question("q0"), "same id", "repeated id"),
        (question(is_impossible=True), "marked is_impossible, but has 1", "inconsistent"),
        ("?", "should be an object", "missing field"),
    ],
)
def test_bad_questions(make, bad, words, reason):
    content = squad(question("q0"), bad)
    with pytest.raises(
        UserError, match=rf"dev.json: data\[0\].paragraphs\[0\], q.*{words}"
    ) as error:
        make(content).rows("validation")
    assert "data.bad_rows=skip" in str(error.value)
    task = make(content, bad_rows="skip")
    assert len(task.rows("validation").questions) == 1
    ((counted, number),) = task.dropped.items()
    assert counted.startswith(reason) and number == 1


@pytest.mark.parametrize(
    "content, words",
    [
        ("{", "dev.json is not a whole JSON file"),
        (b'{\n"data": "\xff"}', "dev.json:2: not valid UTF-8"),
        ("[]", "dev.json .* a list `data`"),
        ({"data": {}}, "a list `data`"),
        ({"data": [{"title": ""}]}, r"data\[0\] should be an object with a list `paragraphs`"),
        ({"data": [{"paragraphs": [{}]}]}, r"data\[0\].paragraphs\[0\] should be an object"),
        (squad(), "dev.json: there is no question that can be used"),
        (squad(question(), context=None), "no text `context`"),
        (squad(question(), context=" "), "`context` is empty"),
        # The version is that of the config; without a declared version the questions show it.
        (
            squad(question(), version="2.0"),
            r"dev.json is of SQuAD 2.0, but .* 1.1 .*squad.py:2.0\)",
        ),
        (squad(question(is_impossible=False), version=None), "is of SQuAD 2.0"),
    ],
)
def test_bad_files(make, content, words):
    with pytest.raises(UserError, match=words):
        make(content).rows("validation")


def test_versions(write, tokenizer):
    folder = write({
        "dev-v1.1.json": squad(question()),
        "dev-v2.0.json": squad(question(), question("b", answers=(), is_impossible=True)),
        "test.json": squad({"id": "t", "question": "Who?"}, version=None),
    })  # fmt: skip
    for version in ("1.1", "2.0"):
        # A file that does not show its version can be either.
        assert len(SquadTask(folder, tokenizer, version=version).rows("test")) == 1
    assert len(SquadTask(folder, tokenizer).rows("validation")) == 1
    with pytest.raises(UserError, match="dev-v2.0.json is of SQuAD 1.1, but config.squad.version"):
        SquadTask(folder, tokenizer, version="2.0").rows("validation")


def test_test_sets(write, tokenizer, tmp_path):
    test = {"id": "t", "question": "Who?"}
    folder = write({"train-v1.1.json": squad(question()), "test.json": squad(test)})
    task = SquadTask(folder, tokenizer)
    assert task.splits == ("train", "test")
    assert "start_positions" in task.rows("train").take(np.array([0]))
    assert "start_positions" not in task.rows("test").take(np.array([0]))
    outputs = {name: np.zeros((1, 384)) for name in ("start_logits", "end_logits")}
    with pytest.raises(UserError, match="the test questions .* have no known answers"):
        task.score("test", outputs)
    path = tmp_path / task.predictions_name("test")
    task.write_predictions("test", outputs, path)
    assert list(json.loads(path.read_text())) == ["t"]
    with pytest.raises(UserError, match="must be named like test_predictions.json"):
        task.write_predictions("test", outputs, tmp_path / "answers.json")
    # No question is left out, and answers are not read.
    write({"test.json": squad(test | {"question": ""})})
    with pytest.raises(UserError, match="question t: its `question` is empty"):
        SquadTask(folder, tokenizer, bad_rows="skip").rows("test")
    for odd in ([], [("The House", 7)]):
        write({"test.json": squad(question(answers=odd, is_impossible=False), version=None)})
        assert len(SquadTask(folder, tokenizer, version="2.0").rows("test")) == 1


@pytest.mark.parametrize(
    "source, words",
    [
        ("{}/nothing", "there is no such folder"),
        ("{}", "has none of train-v1.1.json"),
        ("{}/x.json", "a file: name its split, as in validation="),
        ("dev={}/x.json", "SPLIT=FILE with a split of train, validation, test"),
        ("train={}/y.json", "there is no such file"),
    ],
)
def test_sources_that_do_not_exist(write, tokenizer, source, words):
    folder = write({"x.json": squad(question())})
    with pytest.raises(UserError, match=words):
        SquadTask(source.format(folder), tokenizer)
    named = SquadTask(f"train={folder}/x.json, validation={folder}/x.json", tokenizer)
    assert named.splits == ("train", "validation") and len(named.rows("validation")) == 1


def test_lengths_that_leave_no_room(make):
    with pytest.raises(UserError, match="max_query_length is 93 and config.data.max_seq_length 96"):
        make(squad(question()), max_query_length=93)


def test_tfds(data_set, tokenizer):
    def example(id, texts, starts):
        answers = {"text": np.array(texts, object), "answer_start": np.array(starts, np.int32)}
        question = {"id": id, "question": b"Who?", "context": CONTEXT.encode()}
        return question | {"answers": answers, "is_impossible": np.bool_(not texts)}

    splits = {
        "train": [example(b"a", [b"Senate"], [4])],
        "validation": [example(b"b", ["Café".encode(), b"The"], [18, 0]), example(b"c", [], [])],
    }
    info = data_set("squad/v2.0/3.0.0", splits["train"][0], splits)
    with pytest.raises(UserError, match="squad/v2.0/3.0.0 is of SQuAD 2.0, but config.squad.vers"):
        SquadTask("tfds:squad/v2.0", tokenizer)
    task = SquadTask("tfds:squad/v2.0", tokenizer, version="2.0", max_seq_length=96)
    assert task.splits == ("train", "validation")
    rows = task.rows("validation")
    assert task.score("validation", certain(rows, [True, False]))["exact"] == 100
    splits["train"][0]["answers"]["answer_start"][0] = 3
    with pytest.raises(UserError, match=r"squad/v2.0/3.0.0 train:1, question a: .* but at 4"):
        SquadTask("tfds:squad/v2.0", tokenizer, version="2.0").rows("train")
    del info.features["context"]
    with pytest.raises(
        UserError, match="squad/v2.0/3.0.0 has no field `context`; its fields: id, q"
    ):
        SquadTask("tfds:squad/v2.0", tokenizer)


def test_the_real_dev_set(shared_data, real_tokenizer):
    """All its offsets are right; some answers start or end within a word."""
    folder = str(shared_data / "squad" / "squad-v1.1")
    task = SquadTask(folder, real_tokenizer("bert-base-uncased"), max_answer_length=100)
    rows = task.rows("validation")
    assert len({q.context.text for q in rows.questions}) == 2067
    assert (len(rows.questions), len(rows)) == (10570, 10833)
    scores = task.score("validation", certain(rows, [True] * 10570))
    assert scores["exact_match"] == pytest.approx(99.8, abs=0.1)
    assert scores["f1"] > scores["exact_match"]
