"""SQuAD's files: what is read, what is refused, and answers as slices of the text."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax import tokenizers
from bert_jax.errors import UserError
from bert_jax.tasks import sources, squad_data
from bert_jax.tasks.rows import BadRows
from bert_jax.tasks.squad import Squad
from bert_jax.tasks.squad_answers import rank_answers
from bert_jax.tasks.squad_windows import Windows
from tests.golden.record_squad import VOCABULARY

CONTEXT = "The Senate met in Café New-York; 3 men\u00ad came: “José”, Ann, and 中国."


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.from_file(
        "wordpiece", VOCABULARY, lowercase=True, max_input_chars_per_word=200
    )


def question(id="q1", text="Who met?", answers=(("The Senate", 0),), **more):
    answers = [{"text": t, "answer_start": start} for t, start in answers]
    return {"id": id, "question": text, "answers": answers} | more


def squad(*questions, version="1.1", context=CONTEXT):
    content = {"data": [{"title": "", "paragraphs": [{"context": context, "qas": questions}]}]}
    return content | ({"version": version} if version else {})


def write(folder, content, name="dev-v1.1.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def make(tmp_path, tokenizer, content, **options):
    write(tmp_path, content, f"dev-v{options.get('version', '1.1')}.json")
    return Squad(str(tmp_path), tokenizer, **{"max_seq_length": 96, **options})


def certain(rows, answers):
    """Logits that leave no doubt: of the row's labels, or of [CLS] where `answers` says none."""
    batch = rows.take(np.arange(len(rows)))
    shape = batch["input_ids"].shape
    result = {"start_logits": np.zeros(shape, np.float32), "end_logits": np.zeros(shape)}
    for row in range(len(rows)):
        for side in ("start", "end"):
            at = batch[f"{side}_positions"][row] if answers[rows.question_N[row]] else 0
            result[f"{side}_logits"][row, at] = 10
    return result


def test_a_whole_answer_from_file_to_score(tmp_path, tokenizer):
    content = squad(
        question("a", answers=[("Senate", 4), ("The Senate", 0)]),
        question("b", answers=[("“José”", CONTEXT.index("“"))]),
        question("c", answers=[("3 men", CONTEXT.index("3"))]),
    )
    task = make(tmp_path, tokenizer, content)
    assert (task.head, task.labels, task.splits) == ("question_answering", (), ("validation",))
    rows = task.rows("validation")
    assert len(rows) == 3
    outputs = certain(rows, [True] * 3)
    assert task.score("validation", outputs) == {"exact_match": 100, "f1": 100}
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    predictions = json.loads((tmp_path / "predictions.json").read_text())
    # Accents, quotation marks and what the tokenizer drops are the text's.
    assert predictions == {"a": "Senate", "b": "“José”", "c": "3 men"}
    assert not (tmp_path / "null_odds.json").exists()


def test_the_answers_to_a_2_0_file(tmp_path, tokenizer):
    content = squad(
        question("a", is_impossible=False),
        question("b", answers=(), is_impossible=True),
        question("c", is_impossible=False),
        version="v2.0",
    )
    task = make(tmp_path, tokenizer, content, version="2.0")
    outputs = certain(task.rows("validation"), [True, False, False])
    scores = task.score("validation", outputs)
    assert scores["exact"] == pytest.approx(100 * 2 / 3)
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50, 100)
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text()) == {
        "a": "The Senate",
        "b": "",
        "c": "",
    }
    odds = json.loads((tmp_path / "null_odds.json").read_text())
    assert odds["a"] == pytest.approx(-20)
    assert odds["b"] > 0
    # predictions.json says that the others are there.
    for name in ("predictions", "null_odds"):
        (tmp_path / f"{name}.json").unlink()
    (tmp_path / "null_odds.json").mkdir()
    with pytest.raises(OSError):
        task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    assert not (tmp_path / "predictions.json").exists()
    (tmp_path / "null_odds.json").rmdir()
    # A threshold above the odds makes spans of all.
    task = make(tmp_path, tokenizer, content, version="2.0", null_threshold=100.0)
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    assert "" not in json.loads((tmp_path / "predictions.json").read_text()).values()


def test_windows_hold_the_answers(tmp_path, tokenizer):
    words = [f"w{i}" for i in range(60)]

    @given(
        st.integers(0, 59), st.integers(1, 3), st.integers(12, 40), st.integers(1, 30),
        st.integers(1, 8),
    )  # fmt: skip
    def check(first, number, length, stride, asked):
        context, text = " ".join(words), " ".join(words[first : first + number])
        start = len(" ".join([*words[:first], ""]))
        path = write(tmp_path, squad(question(answers=[(text, start)]), context=context))
        questions = squad_data.read_file(
            path, tokenizer, BadRows(skip=False), version="1.1", labelled=True
        )
        rows = Windows(
            questions, tokenizer, max_seq_length=length, doc_stride=stride, max_query_length=asked
        )
        # Every token is in some window, and in one of them its best.
        best = np.zeros(len(questions.context_ids.row(0)), int)
        for row in range(len(rows)):
            best[rows.first_token_N[row] + np.flatnonzero(rows.is_max_context(row))] += 1
        assert (best == 1).all()
        batch = rows.take(np.arange(len(rows)))
        holding = np.flatnonzero(batch["start_positions"])
        for row in holding:
            first_token = batch["start_positions"][row] - rows.prefix_N[row]
            last_token = batch["end_positions"][row] - rows.prefix_N[row]
            a, b = rows.text(row, first_token, last_token)
            assert context[a:b] == text
        span = questions.questions[0].span
        if stride + span[1] - span[0] < rows.num_tokens_N.max():
            assert len(holding)

    check()


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


def test_pairs_of_ones_own(tokenizer):
    pairs = [("Who met?", CONTEXT), ("Where?", CONTEXT), ("Who?", "Ann")]
    questions = squad_data.of_pairs(pairs, tokenizer)
    assert len(questions.contexts) == 2
    windows = Windows(questions, tokenizer, max_seq_length=96)
    batch = windows.take(np.arange(3))
    assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
    logits = np.zeros((3, 96))
    logits[:, windows.prefix_N[0]] = 5
    rankings = list(rank_answers(windows, logits, logits, n_best=3))
    assert [ranking.question for ranking in rankings] == ["0", "1", "2"]
    best = rankings[0].best_span
    assert (best.text, best.start, best.end) == ("The", 0, 3)
    assert rankings[2].best_span.text == "Ann"
    with pytest.raises(UserError, match="pair 0, question 0: its `context` is empty"):
        squad_data.of_pairs([("Who?", "")], tokenizer)


def test_a_context_of_no_tokens_has_no_answer(tokenizer):
    windows = Windows(squad_data.of_pairs([("Who?", "\u00ad")], tokenizer), tokenizer)
    (ranking,) = rank_answers(windows, np.zeros((1, 384)), np.zeros((1, 384)))
    assert ranking.best_span is None and ranking.prediction(0.0) == ""


def test_logits_of_which_no_pair_is_a_span_still_give_an_answer(tokenizer):
    """The best start is the last token and the best end the first."""
    windows = Windows(squad_data.of_pairs([("Who?", CONTEXT)], tokenizer), tokenizer)
    first, last = windows.prefix_N[0], windows.prefix_N[0] + windows.num_tokens_N[0] - 1
    starts, ends = np.zeros((2, 1, 384))
    starts[0, last], ends[0, first] = 9, 8
    (ranking,) = rank_answers(windows, starts, ends, n_best=1)
    assert ranking.best_span.text == "."


def test_one_answer_and_none_are_compared_where_one_is_asked_for(tokenizer):
    pair = [("Who met?", CONTEXT)]
    windows = Windows(squad_data.of_pairs(pair, tokenizer, with_no_answer=True), tokenizer)
    starts, ends = np.zeros((2, 1, 384))
    starts[0, 0] = ends[0, 0] = 5
    starts[0, windows.prefix_N[0]] = ends[0, windows.prefix_N[0]] = 4
    (ranking,) = rank_answers(windows, starts, ends, n_best=1)
    assert [answer.text for answer in ranking.answers] == ["", "The"]
    assert ranking.null_odds == 2
    assert ranking.prediction(0.0) == "" and ranking.prediction(3.0) == "The"


def test_sentencepiece(tmp_path):
    """Its pieces hold the space before a word, which is no part of an answer."""
    texts = [CONTEXT, "The men met the Senate; it came from New York."] * 20
    tokenizer = tokenizers.train(
        "sentencepiece",
        texts,
        vocab_size=44,
        lowercase=True,
        max_input_chars_per_word=200,
        sentencepiece_type="unigram",
    )
    answers = ["Senate", "Café New-York", "Ann", "“José”", "中国", "3"]
    content = squad(*(question(a, answers=[(a, CONTEXT.index(a))]) for a in answers))
    task = make(tmp_path, tokenizer, content)
    outputs = certain(task.rows("validation"), [True] * len(answers))
    task.write_predictions("validation", outputs, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text()) == {a: a for a in answers}


def test_the_real_dev_set(shared_data):
    """All its offsets are right; some answers start or end within a word."""
    tokenizer = tokenizers.from_file(
        "wordpiece",
        shared_data / "vocab" / "bert-base-uncased" / "vocab.txt",
        lowercase=True,
        max_input_chars_per_word=200,
    )
    task = Squad(str(shared_data / "squad" / "squad-v1.1"), tokenizer, max_answer_length=100)
    rows = task.rows("validation")
    assert (len(rows.questions.contexts), len(rows.questions.questions)) == (2067, 10570)
    assert len(rows) == 10833
    scores = task.score("validation", certain(rows, [True] * 10570))
    assert scores["exact_match"] == pytest.approx(99.8, abs=0.1)
    assert scores["f1"] > scores["exact_match"]
