"""The flat form: layers alone, and the rows of the vocabulary alone."""

import dataclasses
from contextlib import closing

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.interop import formats
from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.training.checkpoint import Checkpointer
from tests.interop.small_bert import TOKENS, copies, make_pretrained, same_weights

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"


@pytest.mark.parametrize("scan_layers", [False, True])
def test_the_padding_is_added_and_cut(scan_layers):
    pretrained = make_pretrained()
    config = dataclasses.replace(pretrained.model_config, scan_layers=scan_layers)
    assert expected_shapes(config)[TABLE] == (len(TOKENS), 12) and config.padded_vocab_size == 128
    params = unflatten(pretrained.weights, config)
    padded = traverse_util.flatten_dict(params, sep="/")
    for name in (TABLE, BIAS):
        assert padded[name].shape[0] == 128 and not padded[name][len(TOKENS) :].any()
        np.testing.assert_array_equal(padded[name][: len(TOKENS)], pretrained.weights[name])
    assert same_weights(flatten(params, config), pretrained.weights)


def test_a_vocabulary_of_128_is_left_as_it_is():
    pretrained = make_pretrained(vocab_size=128)
    params = unflatten(pretrained.weights, pretrained.model_config)
    assert params["mlm"]["output_bias"].shape == (128,)
    assert same_weights(flatten(params, pretrained.model_config), pretrained.weights)


def test_files_for_others_have_no_padding_and_checkpoints_do(tmp_path):
    weights = copies(make_pretrained().weights)
    for kind in formats.WRITERS:
        formats.write(make_pretrained(), tmp_path / kind, kind)
        assert same_weights(formats.read(tmp_path / kind).weights, weights)
    from safetensors.numpy import load_file

    table = load_file(tmp_path / "huggingface" / "model.safetensors")
    assert table["bert.embeddings.word_embeddings.weight"].shape == (len(TOKENS), 12)
    assert table["cls.predictions.bias"].shape == (len(TOKENS),)
    abstract = {"bert": {"embeddings": {"word_embeddings": jax.ShapeDtypeStruct((128, 12), "f4")}}}
    with closing(
        Checkpointer(tmp_path / "bert_jax" / "checkpoints", read_only=True)
    ) as checkpoints:
        _, params = checkpoints.restore_params(abstract)
    table = params["bert"]["embeddings"]["word_embeddings"]
    assert table.shape == (128, 12) and not table[len(TOKENS) :].any()


def test_padding_of_another_program_is_cut(tmp_path):
    """Rows beyond the tokenizer's entries, here 32 of 28, are somebody's padding too."""
    padded = make_pretrained(vocab_size=32)
    table = np.array(padded.weights[TABLE])
    formats.write(padded, tmp_path / "hf", "huggingface")
    pretrained = formats.read(tmp_path / "hf")
    pretrained.complete()
    assert pretrained.model["vocab_size"] == len(TOKENS)
    assert "the last 4, beyond the vocabulary, are left out" in pretrained.warnings[-1]
    params = unflatten(pretrained.weights, pretrained.model_config)
    ours = params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(ours[: len(TOKENS)], table[: len(TOKENS)])
    assert ours.shape == (128, 12) and not ours[len(TOKENS) :].any()
