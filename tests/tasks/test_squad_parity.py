"""Windows and answers against google-research/bert's (benchmarks/golden/squad.py)."""

import json
import zipfile

import numpy as np
import pytest

from benchmarks.golden import squad as recorded
from bert_jax import tokenizers
from tests.golden.inputs import FOLDER, read_json
from tests.tasks.conftest import both, open_task


@pytest.fixture(scope="module", params=["v1.1", "v2.0"])
def golden(request):
    return read_json("squad.json.gz")[request.param]


@pytest.fixture
def task(golden, tmp_path, tokenizer):
    (tmp_path / "dev.json").write_text(json.dumps(golden["squad"]))
    return open_task(
        "squad",
        both(tmp_path / "dev.json"),
        tokenizer,
        version=golden["squad"]["version"].removeprefix("v"),
        max_seq_length=recorded.MAX_SEQ_LENGTH,
        doc_stride=recorded.DOC_STRIDE,
        max_query_length=recorded.MAX_QUERY_LENGTH,
        n_best=recorded.N_BEST,
        max_answer_length=recorded.MAX_ANSWER_LENGTH,
        null_threshold=recorded.NULL_THRESHOLD,
    )


@pytest.fixture
def outputs(golden):
    tokens = recorded.VOCABULARY.read_text(encoding="utf-8").split("\n")
    rows = golden["rows"]
    starts, ends = recorded.logits(
        [[tokens[i] for i in row["input_ids"]] for row in rows],
        [row["context_at"] for row in rows],
    )
    return {"start_logits": starts, "end_logits": ends}


def test_rows(golden, task):
    rows = task.rows("validation")
    assert len(rows) == len(golden["rows"]) > 100
    batch = rows.take(np.arange(len(rows)))
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    for n, expected in enumerate(golden["rows"]):
        question = rows.questions[rows.question_N[n]]
        assert question.id == expected["question"]
        length = len(expected["input_ids"])
        for name in ("input_ids", "token_type_ids"):
            assert batch[name].shape == (len(rows), recorded.MAX_SEQ_LENGTH)
            assert batch[name][n, :length].tolist() == expected[name]
            assert not batch[name][n, length:].any()
        assert batch["attention_mask"][n].tolist() == [
            int(t < length) for t in range(recorded.MAX_SEQ_LENGTH)
        ]
        context = np.flatnonzero(rows.is_max_context(n)) + rows.prefix_N[n]
        assert context.tolist() == expected["max_context"]
        positions = batch["start_positions"][n], batch["end_positions"][n]
        assert positions == (expected["start_position"], expected["end_position"])
    assert 20 < np.count_nonzero(batch["start_positions"]) < len(rows) - 20


def test_rows_of_roberta(tmp_path):
    golden = read_json("squad_roberta.json.gz")
    zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(tmp_path)
    (tmp_path / "dev.json").write_text(json.dumps(golden["squad"]))
    task = open_task(
        "squad",
        both(tmp_path / "dev.json"),
        tokenizers.from_file(
            "byte_bpe",
            tmp_path / "roberta",
            special_tokens=tokenizers.CONVENTIONS["roberta"],
        ),
        max_seq_length=recorded.MAX_SEQ_LENGTH,
        doc_stride=recorded.DOC_STRIDE,
        max_query_length=32,
    )
    rows = task.rows("validation")
    assert len(rows) == len(golden["rows"]) > 200
    batch = rows.take(np.arange(len(rows)))
    for n, expected in enumerate(golden["rows"]):
        assert rows.questions[rows.question_N[n]].id == expected["question"]
        length = batch["attention_mask"][n].sum()
        assert batch["input_ids"][n, :length].tolist() == expected["input_ids"]
        assert rows.prefix_N[n] == expected["context_at"]
        for t, (start, end) in enumerate(expected["places"]):
            # transformers gives no character to a token that is a space alone.
            assert rows.characters(n, t, t) == (start - (start == end), end)
        assert t + 1 == rows.num_tokens_N[n]
        label = [batch["start_positions"][n], batch["end_positions"][n]]
        assert label == expected["label"]
    assert np.count_nonzero(batch["start_positions"]) > 50


def test_predictions(golden, task, outputs, tmp_path):
    path = tmp_path / "out" / "predictions.json"
    path.parent.mkdir()
    task.write_predictions(task.rows("validation"), outputs, path)
    predictions = json.loads(path.read_text())
    assert predictions == golden["predictions"]
    assert list(predictions) == list(golden["predictions"])
    null_odds = path.with_name("null_odds.json")
    assert null_odds.exists() == ("null_odds" in golden)
    if null_odds.exists():
        odds = json.loads(null_odds.read_text())
        assert odds == pytest.approx(golden["null_odds"], abs=1e-6)
        assert 10 < list(predictions.values()).count("") < len(predictions) - 10


def test_n_best(golden, task, outputs, tmp_path):
    task.write_predictions(task.rows("validation"), outputs, tmp_path / "predictions.json")
    best = json.loads((tmp_path / "nbest_predictions.json").read_text())
    assert list(best) == list(golden["nbest"])
    compared = 0
    for question, expected in golden["nbest"].items():
        assert len(best[question]) == len(expected)
        assert sum(a["probability"] for a in best[question]) == pytest.approx(1)
        for ours, theirs in zip(best[question], expected, strict=True):
            # Beyond these, answers begin or end inside words, and the original returns whole words.
            if theirs["start_logit"] + theirs["end_logit"] < recorded.LOW:
                break
            assert list(ours) == list(theirs)
            assert ours["text"] == theirs["text"]
            for name in ("probability", "start_logit", "end_logit"):
                assert ours[name] == pytest.approx(theirs[name], abs=1e-6)
            compared += 1
    assert compared > 400
