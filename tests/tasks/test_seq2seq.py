"""The task of generating a target text from a source text."""

import json
import sys

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import both, open_task

TOKENIZER = make_tokenizer("roberta")
SOURCE = "The cab. A bee! Jade bed. Dead end."


@pytest.fixture
def summaries(write):
    return write(
        {
            "train.jsonl": [{"source": "a b c d e f g", "target": "a b"}] * 3,
            "dev.csv": f"source,target\n{SOURCE},the bed\na b,a\n",
            "test.tsv": "source\na b\nc\n",
        }
    )


def test_rows_are_cut_and_padded_on_both_sides(summaries):
    task = open_task("seq2seq", summaries, TOKENIZER, max_seq_length=6, max_target_length=3)
    rows = task.rows("train")
    batch = rows.take(np.array([0, 2]))
    pieces = [TOKENIZER.id_to_token(i) for i in batch["input_ids"][0]]
    assert pieces == ["<s>", "a", "b", "c", "d", "</s>"]
    assert [TOKENIZER.id_to_token(i) for i in batch["labels"][1]] == ["<s>", "a", "</s>"]
    assert rows.truncated() == (
        "3 of 3 sources are truncated to 6 tokens (config.data.max_seq_length), 3 of 3 targets are "
        "truncated to 3 tokens (config.seq2seq.max_target_length)"
    )
    task = open_task("seq2seq", summaries, TOKENIZER, max_seq_length=40, max_target_length=5)
    batch = task.rows("validation").take(np.array([1]))
    assert batch["decoder_attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert batch["labels"][0, 3:].tolist() == [TOKENIZER.pad_id] * 2
    pieces = [TOKENIZER.id_to_token(i) for i in batch["decoder_input_ids"][0]]
    assert pieces[:3] == ["</s>", "<s>", "a"]
    assert task.rows("train").truncated() == ""


def test_a_test_file_needs_no_targets(summaries, tmp_path):
    task = open_task("seq2seq", summaries, TOKENIZER, max_target_length=4)
    rows = task.rows("test")
    assert "labels" not in rows.take(np.array([0]))
    generated = np.full((2, 4), TOKENIZER.pad_id)
    generated[0] = TOKENIZER.join(TOKENIZER.encode_batch(["e f"])[0]).input_ids_L
    task.write_predictions(rows, {"generated": generated}, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"index": 0, "prediction": "e f"},
        {"index": 1, "prediction": ""},
    ]
    generated[1] = -1
    with pytest.raises(UserError, match="computes NaN: its weights are damaged"):
        task.texts({"generated": generated})


def test_scores_and_the_lead_baseline(summaries):
    """The mean F1 of shared words, pairs of words and the longest common subsequence."""
    task = open_task("seq2seq", summaries, TOKENIZER, max_target_length=8, lead_sentences=3)
    words = ["the cab bed", "e"]
    generated = np.full((2, 8), TOKENIZER.pad_id)
    for row, ids in enumerate(TOKENIZER.encode_batch(words)):
        generated[row, : len(ids)] = ids
    scores = task.score(task.rows("validation"), {"generated": generated})
    # "the cab bed" has both words of "the bed" and none of its one pair; "e" has nothing of "a".
    assert scores["rouge1"] == pytest.approx((2 * (2 / 3) / (5 / 3)) / 2)
    assert scores["rouge2"] == 0 and scores["rougeL"] == scores["rouge1"]
    # "The cab. A bee! Jade bed." has two of six words; the words of "a b" are the only sentence.
    assert scores["lead_rouge1"] == pytest.approx((2 * (2 / 6) / (8 / 6) + 2 * 0.5 / 1.5) / 2)
    assert set(scores) == {f"{lead}rouge{n}" for lead in ("", "lead_") for n in "12L"}
    # "The cab. A bee!" has one of four words.
    two = open_task("seq2seq", summaries, TOKENIZER, lead_sentences=2).rows("validation")
    assert two.lead_scores["lead_rouge1"] == pytest.approx((1 / 3 + 2 * 0.5 / 1.5) / 2)


def test_a_wrong_column_and_an_empty_text_are_refused(summaries, write):
    with pytest.raises(UserError, match="no column is named 'summary'.* source, target"):
        open_task("seq2seq", summaries, TOKENIZER, target_column="summary").rows("validation")
    write({"train.csv": "source,target\na,b\nc, \n"})
    with pytest.raises(UserError, match="train.csv:3: column 'target' is empty"):
        open_task("seq2seq", both(f"{summaries}/train.csv"), TOKENIZER).rows("train")
    task = open_task("seq2seq", both(f"{summaries}/train.csv"), TOKENIZER, bad_rows="skip")
    assert len(task.rows("train")) == 1 and task.dropped["train"]["empty text"] == 1


def test_without_the_package_for_rouge_nothing_is_read(summaries, monkeypatch):
    from bert_jax.tasks import seq2seq

    seq2seq.rouge_scorer.cache_clear()
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UserError, match=r"rouge-score, .*: pip install -e '.\[rouge\]'"):
        open_task("seq2seq", summaries, TOKENIZER)
