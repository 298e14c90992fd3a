"""The flat form of weights: single layers, and no rows that pad the vocabulary."""

import dataclasses
from contextlib import closing

import jax
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.interop import formats
from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.training.checkpoint import Checkpointer
from tests.interop.small_bert import TOKENS, make_pretrained, same_weights

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("entries", [len(TOKENS), 128])
def test_padding_is_added_and_cut(scan_layers, entries):
    pretrained = make_pretrained(vocab_size=entries)
    config = dataclasses.replace(pretrained.model_config, scan_layers=scan_layers)
    assert expected_shapes(config)[TABLE] == (entries, 12)
    params = unflatten(pretrained.weights, config)
    padded = traverse_util.flatten_dict(params, sep="/")
    for name in (TABLE, BIAS):
        assert padded[name].shape[0] == 128 and not padded[name][entries:].any()
        np.testing.assert_array_equal(padded[name][:entries], pretrained.weights[name])
    assert same_weights(flatten(params, config), pretrained.weights)


def test_checkpoints_have_padding(tmp_path):
    formats.write(make_pretrained(), tmp_path / "out", "bert_jax")
    abstract = {"bert": {"embeddings": {"word_embeddings": jax.ShapeDtypeStruct((128, 12), "f4")}}}
    with closing(Checkpointer(tmp_path / "out" / "checkpoints", read_only=True)) as checkpoints:
        _, params = checkpoints.restore_params(abstract)
    table = params["bert"]["embeddings"]["word_embeddings"]
    np.testing.assert_array_equal(table[: len(TOKENS)], make_pretrained().weights[TABLE])
    assert table.shape == (128, 12) and not table[len(TOKENS) :].any()
