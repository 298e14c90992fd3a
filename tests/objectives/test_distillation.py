"""The terms that compare a student with its teacher, against numpy and PyTorch."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.distilbert import DISTILBERT
from bert_jax.interop.names import foreign_names
from bert_jax.interop.weights import expected_shapes, unflatten
from bert_jax.models import BertConfig
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.cross_entropy import sliced_divergence
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.terms.distillation import HiddenCosine, SoftTargets
from bert_jax.objectives.weighted import WeightedTerms
from tests.golden.inputs import section
from tests.models import parity
from tests.objectives.common import decoder

TEMPERATURE = 3.0
MLM = ("masked_lm",)


def plain_divergence(student, teacher, weights):
    ours, theirs = (vocabulary_logits(*x)[..., :11] for x in (student, teacher))
    log_p, log_q = (jax.nn.log_softmax(x / TEMPERATURE) for x in (theirs, ours))
    same = jnp.argmax(ours, axis=-1) == jnp.argmax(theirs, axis=-1)
    return (
        jnp.sum(weights * jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)),
        jnp.sum(weights * same),
    )


def test_sliced_divergence_matches_the_plain_one():
    student, teacher = decoder(6, 0), decoder(9, 1)
    weights = np.random.default_rng(2).integers(0, 3, (3, 37)).astype(np.float32)

    def sliced(student, teacher, weights):
        return sliced_divergence(student, teacher, weights, TEMPERATURE)

    (one, gradient), (other, expected) = (
        jax.jit(jax.value_and_grad(f, has_aux=True))(student, teacher, weights)
        for f in (sliced, plain_divergence)
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)
    assert other[1] > 0
    for found, value in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    assert not np.any(gradient.table_WxE[11:]) and not np.any(gradient.bias_W[11:])


@pytest.mark.parametrize("rows", [None, [1, 0, 1]])
def test_padding_and_rows_without_weight_do_not_count(rows):
    rng, length = np.random.default_rng(3), 9
    mask = (np.arange(length) < np.c_[[9, 2, 6]]).astype(np.int32)
    batch = {
        "input_ids": np.zeros((3, length), np.int32),
        "attention_mask": mask,
        "masked_lm_ids": rng.integers(0, 11, (3, 4)),
        "masked_lm_weights": (rng.random((3, 4)) < 0.7).astype(np.float32),
    }
    if rows:
        batch["example_weights"] = np.array(rows, np.float32)
    weights = mask * np.array(rows or [1] * 3)[:, None]
    student, teacher = decoder(6, 0, length), decoder(9, 1, length)
    logits = rng.standard_normal((3, 4, 11)).astype(np.float32)

    term = SoftTargets(temperature=TEMPERATURE)
    sums = term.sums((student, logits), batch, (teacher, logits))
    divergence, same = plain_divergence(student, teacher, weights)
    expected = float(TEMPERATURE**2 * divergence)
    assert sums["soft_targets_loss"][0] == pytest.approx(expected, rel=1e-5)
    assert sums["soft_targets_accuracy"] == (same, weights.sum())
    masked = batch["masked_lm_weights"] * np.array(rows or [1] * 3)[:, None]
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    scores = np.take_along_axis(log_probs, batch["masked_lm_ids"][..., None], axis=-1)[..., 0]
    assert sums["teacher_mlm_loss"][0] == pytest.approx(-(masked * scores).sum(), rel=1e-5)

    ours, theirs = student.hidden_BxLxE, decoder(6, 4, length).hidden_BxLxE
    norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1)
    cosines = (ours * theirs).sum(-1) / norms
    sums = HiddenCosine().sums(ours, batch, theirs)
    expected = (weights * (1 - cosines)).sum()
    assert sums["hidden_cosine_loss"][0] == pytest.approx(expected, rel=1e-5)
    for each in (term, HiddenCosine()):
        assert each.total(batch) == mask.sum() == 17


def test_losses_and_gradients_match_pytorch():
    """See benchmarks/golden/distillation.py. The limits are as in test_parity.py."""
    reference = parity.golden("distillation")
    model, params = parity.random_model("distilbert")
    batch = section(parity.golden("model_distilbert"), "batch")
    config = BertConfig(**json.loads(str(reference["teacher_config"])))
    names = foreign_names(BERT.names, "huggingface", config.num_hidden_layers)
    weights, shapes = section(reference, "teacher_weights"), expected_shapes(config, MLM)
    teacher = {
        name: names[name].restore(weights[names[name].name], shape)
        for name, shape in shapes.items()
    }
    terms = make_terms(("soft_targets", "masked_lm", "hidden_cosine"), {"temperature": 2.0})
    objective = WeightedTerms(terms, (5.0, 2.0, 1.0), config)
    student = PreTrainingModel(model.config, terms)

    @jax.jit
    def gradient_and_metrics(params, frozen):
        totals = objective.totals(batch)
        loss = functools.partial(
            objective.loss, student, batch=batch, rngs=None, totals=totals, step=0
        )
        return jax.grad(loss, has_aux=True)(params, frozen=frozen)

    gradient, metrics = gradient_and_metrics(params, unflatten(teacher, config))
    for name, expected in section(reference, "losses").items():
        assert metrics[name] == pytest.approx(float(expected), rel=2e-5), name
    names = foreign_names(DISTILBERT.names, "huggingface", config.num_hidden_layers)
    ours = parity.named(gradient, model, names)
    theirs = section(reference, "gradients")
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        # A key's bias changes no probability.
        size = np.linalg.norm(theirs[name.replace("k_lin.bias", "q_lin.bias")])
        assert np.linalg.norm(ours[name] - expected) / size < 1e-4, name
