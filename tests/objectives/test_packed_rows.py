"""Packed rows give the loss and the gradients of the same sequences in rows of their own."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.batches.stream import Stream
from bert_jax.models import attention
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from tests.batches.fakes import FakeStore, make_documents, make_spec, make_tokenizer
from tests.batches.single_rows import single_rows
from tests.interop import small_bert
from tests.models.common import PLAIN
from tests.objectives.common import GivenSamples
from tests.small import flat, random_params

VOCABULARY = 98
CONFIG = dataclasses.replace(
    PLAIN, vocab_size=VOCABULARY, num_hidden_layers=1, max_position_embeddings=64
)
# The terms, the values of `config.data`, and the model's differences from CONFIG.
FAMILIES = {
    "bert": (("masked_lm", "next_sentence"), {}, {}),
    "albert": (
        ("masked_lm", "sentence_order"),
        {"pair_labels": "order", "corruption": "ngrams"},
        {"embedding_size": 14, "layer_groups": 1},
    ),
    "electra": (
        ("generator", "replaced_token"),
        {"rows": "halves", "corruption": "electra"},
        {"generator_size": 0.5},
    ),
    "spanbert": (
        ("masked_lm", "span_boundary"),
        {"rows": "whole_sentences", "corruption": "spans"},
        {},
    ),
    "distilbert": (("soft_targets", "masked_lm", "hidden_cosine"), {"rows": "segments"}, {}),
    "modernbert": (
        ("masked_lm",),
        {"rows": "fitted_documents", "corruption": "modernbert"},
        small_bert.FAMILIES["modernbert"]
        | {"hidden_size": 24, "num_hidden_layers": 2, "global_every": 2},
    ),
    # The rows have no, few and many masks.
    "esm": (
        ("masked_lm",),
        {"rows": "fitted_documents", "corruption": "ettin"},
        small_bert.FAMILIES["esm"]
        | {"hidden_size": 24, "vocab_size": VOCABULARY, "mask_token_id": 4},
    ),
    "eurobert": (
        ("masked_lm",),
        {"rows": "fitted_documents", "corruption": "ettin"},
        small_bert.FAMILIES["eurobert"]
        | {"hidden_size": 24, "num_attention_heads": 6, "vocab_size": VOCABULARY}
        | {"qk_norm": True, "residual_depth": 3, "rope_scale": 1.5},
    ),
}


def packed_batch(**values):
    documents = make_documents(seed=2, num_documents=40, most_sentences=6, mean_length=6)
    store = FakeStore(documents)
    store.tokens = 5 + np.arange(store.num_tokens) % (VOCABULARY - 5)
    store.token_counts = np.ones(VOCABULARY, np.int64)
    spec = make_spec(
        64,
        max_predictions_per_seq=16,
        max_pairs_per_row=3,
        batch_size=8,
        **values,
    )
    return next(Stream(store, make_tokenizer(VOCABULARY), spec).batches(0, 1))


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "modernbert",
        "esm",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                *("modernbert in parts", "albert", "distilbert", "electra", "spanbert"),
                *("eurobert", "eurobert in parts"),
            )
        ),
    ],
)
def test_loss_and_gradients_are_those_of_single_rows(family, monkeypatch):
    if family.endswith("in parts"):
        # As in rows of more than 512 tokens.
        monkeypatch.setattr(attention, "_MAX_WHOLE_LENGTH", 0)
    names, values, changes = FAMILIES[family.removesuffix(" in parts")]
    config = dataclasses.replace(CONFIG, **changes)
    terms, batch = make_terms(names), packed_batch(**values)
    if family == "electra":
        # A sample depends on its place in the batch, so both get the same ones.
        terms = (GivenSamples(), *terms[1:])
        shape = batch["masked_lm_ids"].shape
        batch["samples"] = np.random.default_rng(0).integers(5, VOCABULARY, shape).astype(np.int32)
    teacher = config if family == "distilbert" else None
    objective = WeightedTerms(terms, (1.0, 0.7, 0.4)[: len(terms)], teacher)
    model = PreTrainingModel(config, terms)
    params, frozen = (random_params(model, seed) for seed in (1, 2))
    single = single_rows(batch)
    assert len(single["input_ids"]) > 1.3 * len(batch["input_ids"])

    @jax.jit
    def gradients(batch):
        def loss(params):
            rngs = {"sample": jax.random.key(0)}
            totals = objective.totals(batch)
            return objective.loss(model, params, batch, rngs, totals, frozen if teacher else {}, 0)

        return jax.value_and_grad(loss, has_aux=True)(params)

    ((loss, metrics), found), ((expected_loss, expected_metrics), expected) = map(
        gradients, (batch, single)
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=2e-6)
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
    found, expected = flat(found), flat(expected)
    for name, value in expected.items():
        error = np.linalg.norm(found[name] - value)
        # A bias of all keys changes no probability: its gradient is 0, but for rounding.
        scale = expected[name.replace("key_bias", "query_bias")]
        assert error <= 1e-5 * np.linalg.norm(scale), name
    lengths = single["attention_mask"].sum(axis=1).astype(float)
    sums = {"num_sequences": len(lengths), "num_tokens": lengths.sum()}
    sums["sum_of_squared_lengths"] = (lengths**2).sum()
    assert sums == {name: metrics[name] for name in sums}
    assert not sums.keys() & expected_metrics.keys()
