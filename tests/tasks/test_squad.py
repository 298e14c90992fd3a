"""SQuAD: its files and data sets, windows, answers, scores and predictions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.tasks.squad_answers import rank_answers
from bert_jax.tasks.squad_data import Context, Question, Windows
from bert_jax.tokenizers import training
from tests.tasks.conftest import both, open_task

SIZES = {"max_seq_length": 384, "doc_stride": 128, "max_query_length": 64}
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
        source = both(f"{folder}/dev.json")
        return open_task("squad", source, tokenizer, **{"max_seq_length": 96, **options})

    return make


def asked(tokenizer, context=CONTEXT, text="Who met?"):
    (ids,) = tokenizer.encode_batch([text])
    return Question("0", ids, Context(context, *tokenizer.encode_aligned(context)))


def certain(rows, answers):
    """Returns logits that predict the labels, or [CLS] for questions without an answer."""
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
    assert (task.head, task.labels) == ("question_answering", ())
    rows = task.rows("validation")
    assert len(rows) == 3
    outputs = certain(rows, [True] * 3)
    assert task.score(task.rows("validation"), outputs) == {"exact_match": 100, "f1": 100}
    task.write_predictions(task.rows("validation"), outputs, tmp_path / "predictions.json")
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    # Accents, quotation marks and characters that the tokenizer drops are kept.
    assert predictions == {"a": "Senate", "b": "“José”", "c": "3 men"}
    assert not (tmp_path / "null_odds.json").exists()


def test_answers_and_scores_of_squad_2_0(make, tmp_path):
    content = squad(
        question("a", is_impossible=False),
        question("b", answers=(), is_impossible=True),
        question("c", is_impossible=False),
        version="v2.0",
    )
    task = make(content, version="2.0")
    outputs = certain(task.rows("validation"), [True, False, False])
    scores = task.score(task.rows("validation"), outputs)
    assert scores["exact"] == pytest.approx(100 * 2 / 3)
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50, 100)
    path = tmp_path / "predictions.json"
    task.write_predictions(task.rows("validation"), outputs, path)
    assert json.loads(path.read_text()) == {"a": "The Senate", "b": "", "c": ""}
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert odds["a"] == pytest.approx(-20) and odds["b"] > 0
    # With a threshold above all odds, all answers are spans.
    task = make(content, version="2.0", null_threshold=100.0)
    task.write_predictions(task.rows("validation"), outputs, path)
    assert "" not in json.loads(path.read_text()).values()


@given(
    st.integers(0, 59), st.integers(1, 3), st.integers(12, 40), st.integers(1, 30),
    st.integers(1, 8),
)  # fmt: skip
def test_windows_contain_the_answers(tokenizer, first, number, length, stride, most):
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
    # Every token has its maximum context in exactly one window.
    best = np.zeros(len(ids), int)
    for row in range(len(rows)):
        best[rows.first_token_N[row] + np.flatnonzero(rows.is_max_context(row))] += 1
    assert (best == 1).all()
    batch = rows.take(np.arange(len(rows)))
    holding = np.flatnonzero(batch["start_positions"])
    for row in holding:
        tokens = (batch[f"{side}_positions"][row] - rows.prefix_N[row] for side in ("start", "end"))
        a, b = rows.characters(row, *tokens)
        assert context[a:b] == answer
    if stride + span[1] - span[0] < rows.num_tokens_N.max():
        assert len(holding)


def test_logits_that_form_no_span(tokenizer):
    """The best start is the last token and the best end the first, so a single token is chosen."""
    windows = Windows([asked(tokenizer)], tokenizer, **SIZES)
    first, last = windows.prefix_N[0], windows.prefix_N[0] + windows.num_tokens_N[0] - 1
    starts, ends = np.zeros((2, 1, 384))
    starts[0, last], ends[0, first] = 9, 8
    (ranking,) = rank_answers(windows, starts, ends, n_best=1, max_answer_length=30)
    assert ranking.best_span.text == "."
    # A context without tokens has no answer.
    windows = Windows([asked(tokenizer, "\u00ad")], tokenizer, **SIZES)
    (ranking,) = rank_answers(
        windows, np.zeros((1, 384)), np.zeros((1, 384)), n_best=20, max_answer_length=30
    )
    assert ranking.best_span is None and ranking.prediction(0.0) == ""


def test_best_span_and_no_answer_are_always_kept(tokenizer):
    windows = Windows([asked(tokenizer)], tokenizer, **SIZES)
    starts, ends = np.zeros((2, 1, 384))
    starts[0, 0] = ends[0, 0] = 5
    starts[0, windows.prefix_N[0]] = ends[0, windows.prefix_N[0]] = 4
    (ranking,) = rank_answers(
        windows, starts, ends, n_best=1, max_answer_length=30, with_no_answer=True
    )
    assert [answer.text for answer in ranking.answers] == ["", "The"]
    assert ranking.null_odds == 2
    assert ranking.prediction(0.0) == "" and ranking.prediction(3.0) == "The"


def test_sentencepiece(make, tmp_path):
    """Pieces include the space before a word, which is not part of an answer."""
    tokenizer = training.train(
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
    task.write_predictions(task.rows("validation"), outputs, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text()) == {a: a for a in answers}


@pytest.mark.parametrize(
    "bad, words, reason",
    [
        (question(answers=[("The House", 0)]), "'The House' is not in the context", "answer not"),
        (question(answers=[("me", 0)]), "'me' occurs 3 times, but not at .* 0", "wrong offset"),
        (question(answers=[("", 0)]), "has no token", "answer without"),
        (question(answers=[("\u00ad", CONTEXT.index("\u00ad"))]), "has no token", "answer without"),
        (question(answers=()), "only SQuAD 2.0", "no answer"),
        ({"id": "q1", "question": "Who?"}, "KeyError: 'answers'", "another form"),
        (question(text=" "), "its context or its question is empty", "empty text"),
        ({"question": "Who?", "answers": []}, "KeyError: 'id'", "another form"),
        (question() | {"answers": [{"text": "me"}]}, "not at character None", "wrong offset"),
        (question("q0"), "same id", "repeated id"),
    ],
)
def test_bad_questions(make, bad, words, reason):
    content = squad(question("q0"), bad)
    with pytest.raises(
        UserError, match=rf"dev.json: data\[0\].paragraphs\[0\].qas\[1\], .*{words}"
    ) as error:
        make(content).rows("train")
    assert "data.bad_rows=skip" in str(error.value)
    task = make(content, bad_rows="skip")
    assert len(task.rows("train").questions) == 1
    ((counted, number),) = task.dropped["train"].items()
    assert counted.startswith(reason) and number == 1


def test_an_error_of_the_tokenizer_is_no_bad_question(make, monkeypatch):
    task = make(squad(question("q0")), bad_rows="skip")
    monkeypatch.setattr(task._tokenizer, "encode_aligned", len)
    with pytest.raises(TypeError):
        task.rows("train")


def test_real_files_have_other_ids_and_wrong_offsets(make, tmp_path):
    """Every dev question is scored and predicted, because the official script reads no offsets."""
    content = squad(
        question(7, answers=[("Senate", 4)]),
        question("moved", answers=[("Ann", 2)]),
        question("space", answers=[("The  Senate\nmet", 0)]),
        question("twice", answers=[("me", 0)]),
        question("absent", answers=[("the House", 0)]),
        question("no offset") | {"answers": [{"text": "Ann"}]},
    )
    task = make(content, bad_rows="skip")
    rows = task.rows("validation")
    expected = ["7", "moved", "space", "twice", "absent", "no offset"]
    assert [q.id for q in rows.questions] == expected
    assert task.dropped["validation"] == {
        "wrong offset, repaired": 2,
        "wrong offset, kept for the score": 1,
        "answer not in the context, kept for the score": 1,
    }
    outputs = certain(rows, [True] * 6)
    task.write_predictions(task.rows("validation"), outputs, tmp_path / "predictions.json")
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    assert list(predictions) == expected
    assert list(predictions.values())[:3] == ["Senate", "Ann", "The Senate met"]
    # The official script on this file: 4 of the 6 answers are equal to the words of the context.
    scores = task.score(task.rows("validation"), outputs)
    assert scores["exact_match"] == pytest.approx(100 * 4 / 6)
    # The same problems in training rows: only these can be learned.
    assert [q.id for q in task.rows("train").questions] == ["7", "moved", "space", "no offset"]
    spans = {q.span for q in rows.questions if q.id in ("moved", "no offset")}
    assert len(spans) == 1 and None not in spans


@pytest.mark.parametrize(
    "content, words",
    [
        ('{"data": [', "dev.json:1: not a JSON object"),
        (b'{\n"data": "\xff"}', "dev.json:2: not valid UTF-8"),
        ("[]", "the validation split .*dev.json. has no rows"),
        ({"data": [{"paragraphs": [{}]}]}, "KeyError: 'context'"),
        (squad(question(), context=None), "qas.0., question .*: AttributeError: 'NoneType'"),
        (squad("?"), "dev.json is damaged or another program's: AttributeError: 'str'"),
        # The version must match the config.
        (
            squad(question(answers=(), is_impossible=True), version=None),
            r"dev.json is SQuAD 2.0, but .* 1.1 .*squad.py:2.0\)",
        ),
    ],
)
def test_bad_files(make, content, words):
    with pytest.raises(UserError, match=words):
        make(content).rows("validation")


@pytest.mark.parametrize("is_array", [True, False])
def test_questions_as_datasets_exports_them(make, is_array):
    answers = {"text": ["The Senate"], "answer_start": [0]}
    row = {"id": "a", "title": "t", "context": CONTEXT, "question": "Who?", "answers": answers}
    none = row | {"id": "b", "answers": {"text": [], "answer_start": []}}
    content = json.dumps([row, none], indent=1)
    if not is_array:
        content = json.dumps(row) + "\n" + json.dumps(none)
    rows = make(content, version="2.0").rows("validation")
    assert [question.answers for question in rows.questions] == [("The Senate",), ()]
    same = make(squad(question("a", "Who?"))).rows("validation").take(np.array([0]))
    batch = rows.take(np.array([0]))
    assert all(np.array_equal(batch[name], same[name]) for name in same)


@pytest.mark.parametrize("declared", ["2.0", None])
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_a_file_whose_questions_all_have_answers_fits_both_versions(make, declared, version):
    content = squad(question(is_impossible=False), version=declared)
    assert len(make(content, version=version).rows("validation")) == 1
    with pytest.raises(UserError, match="is SQuAD 1.1, but config.squad.version is 2.0"):
        make(squad(question()), version="2.0").rows("validation")


def test_test_sets(write, tokenizer, tmp_path):
    test = {"id": "t", "question": "Who?"}
    files = dict.fromkeys(("train-v1.1.json", "dev.json"), squad(question()))
    folder = write(files | {"test.json": squad(test)})
    task = open_task("squad", folder, tokenizer, max_seq_length=384)
    assert task.splits == ("train", "validation", "test")
    assert "start_positions" in task.rows("train").take(np.array([0]))
    assert "start_positions" not in task.rows("test").take(np.array([0]))
    outputs = {name: np.zeros((1, 384)) for name in ("start_logits", "end_logits")}
    path = tmp_path / task.predictions_name("test")
    task.write_predictions(task.rows("test"), outputs, path)
    assert list(json.loads(path.read_text())) == ["t"]
    # No question is dropped, and answers are not read.
    write({"test.json": squad(test | {"question": ""})})
    with pytest.raises(UserError, match="question t: its context or its question is empty"):
        open_task("squad", folder, tokenizer, max_seq_length=96, bad_rows="skip").rows("test")
    for odd in ([], [("The House", 7)]):
        write({"test.json": squad(question(answers=odd))})
        assert len(open_task("squad", folder, tokenizer, max_seq_length=96).rows("test")) == 1


@pytest.mark.slow
def test_the_real_dev_set(shared_data, real_tokenizer, write):
    """Reads six articles, because the whole file takes too long."""
    content = json.loads((shared_data / "squad" / "squad-v1.1" / "dev-v1.1.json").read_text())
    folder = write({"dev.json": content | {"data": content["data"][:6]}})
    sizes = {"max_seq_length": 384, "max_answer_length": 100}
    tokenizer = real_tokenizer("bert-base-uncased")
    task = open_task("squad", both(f"{folder}/dev.json"), tokenizer, **sizes)
    rows = task.rows("validation")
    num_questions = len(rows.questions)
    assert (num_questions, len(rows)) == (2145, 2177)
    scores = task.score(task.rows("validation"), certain(rows, [True] * num_questions))
    expected = {"exact_match": 99.20745920745921, "f1": 99.20745920745921}
    assert scores == pytest.approx(expected, abs=1e-9)
