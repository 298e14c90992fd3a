"""The heads of fine-tuning over the encoder."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.heads import load_head
from bert_jax.models import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.heads import pooled_token
from tests.small import random_params

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=12,
    num_hidden_layers=1,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=16,
)
RNG = np.random.default_rng(0)
IDS_BxL = RNG.integers(5, 50, (4, 9)).astype(np.int32)
TYPES_BxL = (np.arange(9) > 4).astype(np.int32) * np.ones((4, 1), np.int32)
MASK_BxL = (np.arange(9) < np.array([[9], [5], [7], [3]])).astype(np.int32)
INPUTS = {"input_ids": IDS_BxL, "token_type_ids": TYPES_BxL, "attention_mask": MASK_BxL}


def built(head, num_labels=3, **changes):
    """Returns a model and its weights, which are random (biases too)."""
    config = dataclasses.replace(CONFIG, **changes)
    model = load_head(head).make_model(config, num_labels)
    return model, random_params(model, seed=1, scale=0.1)


@functools.partial(jax.jit, static_argnums=0)
def run(model, params, batch=INPUTS):
    return model.apply({"params": params}, batch, deterministic=True)


def encode(params, has_pooler):
    encoder = BertEncoder(CONFIG, has_pooler)
    apply = jax.jit(functools.partial(encoder.apply, deterministic=True))
    return apply({"params": params["bert"]}, *INPUTS.values())


def affine(x, params):
    dense = params["classifier"]["dense"]
    return x @ dense["kernel"] + dense["bias"]


def test_a_sequence_is_classified_by_the_pooler():
    model, params = built("sequence_classification")
    logits = run(model, params)["logits"]
    assert logits.shape == (4, 3) and logits.dtype == jnp.float32
    _, pooled_BxD = encode(params, has_pooler=True)
    np.testing.assert_allclose(logits, affine(pooled_BxD, params), rtol=1e-5, atol=1e-6)
    assert built("sequence_classification", num_labels=0)[0].num_outputs == 1, "a number"


def test_late_pooling_is_the_mean_of_the_logits_of_all_tokens():
    """Without head_transform, the layer before the logits has no LayerNorm."""
    options = {"classifier_pooling": "late", "head_transform": False, "head_act": "relu"}
    model, params = built("sequence_classification", **options)
    assert params["mlm"].keys() == {"transform"}
    hidden_BxLxD, _ = encode(params, has_pooler=False)
    dense = params["mlm"]["transform"]
    logits_BxLxC = affine(jax.nn.relu(hidden_BxLxD @ dense["kernel"] + dense["bias"]), params)
    expected = [
        logits[:n].mean(axis=0) for logits, n in zip(logits_BxLxC, (9, 5, 7, 3), strict=True)
    ]
    np.testing.assert_allclose(run(model, params)["logits"], expected, rtol=1e-5)
    assert "mlm" not in built("token_classification", **options)[1]


def test_tokens_and_spans_are_predicted_from_the_last_states():
    for head, num_outputs in (("token_classification", 3), ("question_answering", 2)):
        model, params = built(head)
        assert "pooler" not in params["bert"], "a pooler that no head reads must not exist"
        hidden_BxLxD, nothing = encode(params, has_pooler=False)
        assert nothing is None
        expected = affine(hidden_BxLxD, params)
        outputs = run(model, params)
        if head == "question_answering":
            outputs = jnp.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
        else:
            outputs = outputs["logits"]
        assert outputs.shape == (4, 9, num_outputs)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_each_choice_is_scored_as_its_own_sequence():
    model, params = built("multiple_choice")
    choices = {name: x.reshape(2, 2, 9) for name, x in INPUTS.items()}
    logits = run(model, params, choices)["logits"]
    single, _ = built("sequence_classification", num_labels=0)
    expected = run(single, params)["logits"].reshape(2, 2)
    assert logits.shape == (2, 2)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


def test_dropout_before_the_head_only_in_training():
    model, params = built("sequence_classification", hidden_dropout_prob=0.0)
    model = dataclasses.replace(
        model, config=dataclasses.replace(model.config, attention_probs_dropout_prob=0.0)
    )

    @jax.jit
    def logits(seed):
        key = {"dropout": jax.random.key(seed)}
        return model.apply({"params": params}, INPUTS, deterministic=False, rngs=key)["logits"]

    assert not np.array_equal(logits(0), logits(1))
    np.testing.assert_array_equal(logits(0), logits(0))
    # Each of 48 numbers is kept with probability 0.9, so the mean over many draws is the input.
    mean = np.mean([logits(seed) for seed in range(300)], axis=0)
    np.testing.assert_allclose(mean, run(model, params)["logits"], atol=0.05)


def test_roberta_also_has_dropout_before_the_dense_layer():
    model, params = built("sequence_classification", pooler_dropout_prob=0.5)
    names = {"Dropout_0", "dense", "pooler"}
    apply = functools.partial(
        model.apply,
        deterministic=False,
        rngs={"dropout": jax.random.key(0)},
        capture_intermediates=lambda module, _: module.name in names,
    )
    _, caught = jax.jit(apply)({"params": params}, INPUTS)
    pooler = caught["intermediates"]["bert"]["pooler"]
    (token_BxD,), (dense_BxD,) = pooler["Dropout_0"]["__call__"], pooler["dense"]["__call__"]
    # Of 48 numbers.
    assert 12 < np.sum(token_BxD == 0) < 36
    dense = params["bert"]["pooler"]["dense"]
    expected = token_BxD @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(dense_BxD, expected, rtol=1e-5, atol=1e-6)


def test_a_causal_model_pools_the_last_real_token():
    hidden_BxLxD = RNG.normal(size=(4, 9, 12)).astype(np.float32)
    pooled_BxD = pooled_token(dataclasses.replace(CONFIG, causal=True), hidden_BxLxD, MASK_BxL)
    np.testing.assert_array_equal(pooled_BxD, hidden_BxLxD[np.arange(4), [8, 4, 6, 2]])
