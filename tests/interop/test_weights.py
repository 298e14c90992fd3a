"""The flat form of weights: no rows that pad the vocabulary."""

import numpy as np
import pytest
from flax import traverse_util

from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.tokenizers.training import extend
from tests.interop.small_bert import TOKENS, copies, make_pretrained, same_weights

TABLE, BIAS = "bert/embeddings/word_embeddings", "mlm/output_bias"


@pytest.mark.parametrize("vocab_size", [len(TOKENS), 128])
def test_padding_is_added_and_cut(vocab_size):
    pretrained = make_pretrained(vocab_size=vocab_size)
    config = pretrained.model_config
    assert expected_shapes(config)[TABLE] == (vocab_size, 12)
    params = unflatten(pretrained.weights, config)
    padded = traverse_util.flatten_dict(params, sep="/")
    for name in (TABLE, BIAS):
        assert padded[name].shape[0] == 128 and not padded[name][vocab_size:].any()
        np.testing.assert_array_equal(padded[name][:vocab_size], pretrained.weights[name])
    assert same_weights(flatten(params, config), pretrained.weights)


@pytest.mark.parametrize(
    "family, terms, biases",
    [
        ("bert", ("masked_lm", "next_sentence"), {BIAS}),
        ("bert", ("masked_lm", "span_boundary"), {BIAS, "sbo/decoder/output_bias"}),
        ("albert", (), {BIAS}),
        ("electra", ("generator", "replaced_token"), {"generator/mlm/output_bias"}),
    ],
)
def test_an_added_token_begins_as_the_mean_of_its_pieces(family, terms, biases):
    # The fraction makes ELECTRA's generator four units wide.
    size = {"generator_size": 1 / 3} if family == "electra" else {}
    pretrained = make_pretrained(family=family, terms=terms, **size)
    before, old = copies(pretrained.weights), pretrained.tokenizer
    new = extend(old, "2", [("bead", 3), ("aging", 2)])
    pretrained.extend(new)
    assert pretrained.model["vocab_size"] == len(old.tokens) + 2 == new.vocab_size
    assert pretrained.tokenizer is new and new.tokens[-2:] == ["bead", "aging"]
    changed = {n for n, x in pretrained.weights.items() if x.shape != before[n].shape}
    assert changed == {TABLE, *biases}
    for name in changed:
        value, earlier = pretrained.weights[name], before[name]
        np.testing.assert_array_equal(value[:-2], earlier)
        for row, pieces in ((-2, ("b", "##e", "##a", "##d")), (-1, ("a", "##g", "##ing"))):
            rows = [earlier[old.ids[piece]] for piece in pieces]
            np.testing.assert_allclose(value[row], np.mean(rows, axis=0), rtol=1e-6)
    unchanged = before.keys() - changed
    assert all(np.array_equal(pretrained.weights[n], before[n]) for n in unchanged)
    # The shapes are those of a model with this vocabulary.
    shapes = expected_shapes(pretrained.model_config, pretrained.terms)
    assert {n: x.shape for n, x in pretrained.weights.items()} == shapes
