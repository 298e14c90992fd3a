"""The flat form of weights: single layers, and no rows that pad the vocabulary."""

import dataclasses

import numpy as np
import pytest
from flax import traverse_util

from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from tests.interop.small_bert import TOKENS, make_pretrained, same_weights

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("vocab_size", [len(TOKENS), 128])
def test_padding_is_added_and_cut(scan_layers, vocab_size):
    pretrained = make_pretrained(vocab_size=vocab_size)
    config = dataclasses.replace(pretrained.model_config, scan_layers=scan_layers)
    assert expected_shapes(config)[TABLE] == (vocab_size, 12)
    params = unflatten(pretrained.weights, config)
    padded = traverse_util.flatten_dict(params, sep="/")
    for name in (TABLE, BIAS):
        assert padded[name].shape[0] == 128 and not padded[name][vocab_size:].any()
        np.testing.assert_array_equal(padded[name][:vocab_size], pretrained.weights[name])
    assert same_weights(flatten(params, config), pretrained.weights)
