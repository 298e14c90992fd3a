"""A run with packed rows: its speeds."""

import pytest

from bert_jax.commands.open_input import open_run_input
from bert_jax.commands.pretrain import pretrain
from bert_jax.config import stage
from bert_jax.pretraining.input import stream_spec
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests.small_run import small_run


def test_speeds_count_pairs_and_their_tokens(texts, tmp_path):
    values = small_run(
        texts,
        **{"data.max_pairs_per_row": 4, "data.short_seq_prob": 0.7, "train.batch_size": 8},
        **{"train.stages": (stage(fraction=1.0, max_seq_length=64),)},
    )
    pretrain(values, tmp_path)
    (of_run,) = resolve_stages(values)
    stream = open_run_input(values, tmp_path).stream(stream_spec(values, of_run))
    batches = list(stream.batches(0, 6))
    lines = [line for line in read_metrics(tmp_path) if line.get("sequences_per_second")]
    assert len(lines) > 3
    for line in lines:
        batch = batches[line["step"] - 1]
        length = (batch["attention_mask"] > 0).sum() / batch["next_sentence_weights"].sum()
        found = line["tokens_per_second"] / line["sequences_per_second"]
        assert found == pytest.approx(length, rel=1e-6)
