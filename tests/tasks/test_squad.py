"""SQuAD's answers: slices of the text, found in its windows, ranked, scored and written."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax import tokenizers
from bert_jax.errors import UserError
from bert_jax.tasks import squad_data
from bert_jax.tasks.sentence_rows import BadRows
from bert_jax.tasks.squad import Squad
from bert_jax.tasks.squad_answers import rank_answers
from bert_jax.tasks.squad_windows import Windows
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
