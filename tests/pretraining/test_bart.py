"""A small BART is trained, evaluated and reported; test_killed.py kills one."""

import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.inspect import row_lines
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import train as pretrain
from bert_jax.pretraining.batches import stream_spec
from bert_jax.pretraining.input import open_run_input
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from configs import bart
from tests.small_run import small_run


def run_config(texts, **overrides):
    # Rows of 16 tokens have room for sentences of 14.
    sizes = {"model.vocab_size": 300, "model.num_decoder_layers": 1, "data.max_sentence_tokens": 14}
    return small_run(texts, bart.get_config("tiny"), **sizes | overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    directory = tmp_path_factory.mktemp("bart") / "run"
    pretrain.train(run_config(texts), directory)
    return directory


def test_the_loss_is_that_of_every_target_token(finished):
    line = read_metrics(finished)[0]
    assert line["loss"] == line["denoising_loss"]
    results = evaluation.evaluate_workdir(finished)
    loss, perplexity = results["denoising_loss"], results["denoising_perplexity"]
    assert perplexity == pytest.approx(np.exp(loss)) and results["unigram_denoising_loss"] > 1
    report = json.loads((finished / "results.json").read_text())["corpus"][0]
    assert report["seen"] == 1.0
    assert "denoising" in (finished / "report.html").read_text()


def test_batches_have_the_rows_of_one_document(finished, texts):
    config = run_config(texts)
    (stage,) = resolve_stages(config)
    run_input = open_run_input(config, finished)
    stream = run_input.stream(stream_spec(config, stage))
    tokenizer = run_input.tokenizer
    for batch in stream.batches(0, 6):
        lengths = batch["decoder_attention_mask"].sum(axis=1)
        assert (batch["labels"][:, 0] == tokenizer.cls_id).all()
        assert (batch["decoder_input_ids"][:, 0] == tokenizer.sep_id).all()
        for row, length in zip(batch["labels"], lengths, strict=True):
            assert (row == tokenizer.sep_id).sum() == 1 and row[length - 1] == tokenizer.sep_id
        assert (batch["input_ids"] == tokenizer.mask_id).any()
        source, target = row_lines(batch, 0, tokenizer)
        pieces = [tokenizer.piece_text(i) for i in batch["labels"][0, : lengths[0]].tolist()]
        assert target.plain.replace("·", " ").split()[1:] == pieces
        assert source.plain.startswith("  segment 0")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data.max_pairs_per_row", 2, "max_pairs_per_row is 2, but .* a target for each row"),
        ("data.corruption", "none", "denoising, which needs decoder_attention_mask"),
    ],
)
def test_what_a_denoising_run_cannot_have(texts, tmp_path, key, value, words):
    with pytest.raises(UserError, match=words):
        pretrain.train(run_config(texts, **{key: value}), tmp_path)
