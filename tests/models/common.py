"""A model with odd and unequal sizes, and functions that run it."""

import dataclasses
import functools
import math

import flax.linen as nn
import jax

from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.training.state import init_params

# All sizes differ and are odd, so that a transposed or wrong axis causes an error.
ODD = BertConfig(
    101, 21, 3, 3, 35, max_position_embeddings=19, layer_norm_eps=1e-5, initializer_range=0.02
)
PLAIN = dataclasses.replace(ODD, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def pretraining_model(config: BertConfig) -> PreTrainingModel:
    return PreTrainingModel(config, make_terms())


def abstract_params(config: BertConfig):
    """Returns the shapes of the parameters, each in its box of axis names."""
    return jax.eval_shape(lambda: init_params(pretraining_model(config), 0))


@functools.cache
def initializer(config: BertConfig):
    return jax.jit(lambda seed: nn.unbox(init_params(pretraining_model(config), seed)))


def init(config: BertConfig, seed: int = 0):
    return initializer(config)(seed)


def apply(config: BertConfig, params, batch, **kwargs):
    """Returns the logits of both heads, without the ids that pad the vocabulary."""
    kwargs = {"deterministic": True} | kwargs
    outputs = pretraining_model(config).apply({"params": params}, batch, **kwargs)
    return outputs | {"mlm": outputs["mlm"][..., : config.vocab_size]}


@functools.cache
def compiled(config: BertConfig):
    """Returns `apply`, compiled once for all tests."""
    return jax.jit(lambda params, batch: apply(config, params, batch))


def assert_rate(dropped, rate):
    """Checks that the fraction of True is within four standard errors of the rate."""
    error = 4 * math.sqrt(rate * (1 - rate) / dropped.size)
    assert abs(dropped.mean() - rate) < error, f"{dropped.mean():.4f} dropped, not {rate}"


def assert_independent(one, other, rate=0.1):
    """Checks that two masks both drop an element with probability rate^2."""
    assert one.shape == other.shape
    assert_rate(one & other, rate**2)
