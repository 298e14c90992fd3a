"""A run with packed rows: its speeds, and its evaluation."""

import json

import pytest

from bert_jax.config import stage
from bert_jax.pretraining import train as pretrain
from bert_jax.pretraining.batches import stream_spec
from bert_jax.pretraining.input import open_run_input
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests.small_run import small_run

LENGTH = 64


def config(texts, max_pairs_per_row=4):
    stages = (stage(fraction=1.0, max_seq_length=LENGTH),)
    values = {"data.max_pairs_per_row": max_pairs_per_row, "data.short_seq_prob": 0.7}
    return small_run(texts, **values, **{"train.stages": stages, "train.batch_size": 8})


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("packed") / "run"
    pretrain.train(config(texts), directory)
    return directory


def test_speeds_count_pairs_and_their_tokens(finished, texts):
    values = config(texts)
    (of_run,) = resolve_stages(values)
    stream = open_run_input(values, finished).stream(stream_spec(values, of_run))
    batches = list(stream.batches(0, 6))
    lines = [line for line in read_metrics(finished) if line.get("sequences_per_second")]
    assert len(lines) > 3
    for line in lines:
        batch = batches[line["step"] - 1]
        length = (batch["attention_mask"] > 0).sum() / batch["next_sentence_weights"].sum()
        found = line["tokens_per_second"] / line["sequences_per_second"]
        assert found == pytest.approx(length, rel=1e-6)


@pytest.mark.slow
def test_evaluation_has_the_rows_of_a_run_without_packing(finished, texts, tmp_path):
    pretrain.train(config(texts, max_pairs_per_row=1), tmp_path)
    packed, single = (
        json.loads((directory / "results.json").read_text()) for directory in (finished, tmp_path)
    )
    for name in ("num_sequences", "unigram_mlm_loss", "constant_nsp_loss"):
        assert packed[name] == single[name]
    assert packed["mlm_loss"] != single["mlm_loss"]
