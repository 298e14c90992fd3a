"""The sizes in ALBERT's recipes, and a run of all their parts."""

import math

import flax.linen as nn
import jax
import pytest

from bert_jax.config import validate
from bert_jax.models import BertConfig
from bert_jax.models.bert import BertEncoder
from tests.config.test_config_files import CONFIGS, get_config

# The parameters of transformers' AlbertModel with its pooler, and the steps from ALBERT's README.
RECIPES = [
    ("base", 11_683_584, 125_000, 0.1),
    ("xlarge_v2", 58_724_864, 3_000_000, 0.0),
]


@pytest.mark.parametrize(("arg", "num_parameters", "num_steps", "dropout"), RECIPES)
def test_recipes(arg, num_parameters, num_steps, dropout):
    config = get_config(CONFIGS / "albert.py", arg)
    validate(config)
    encoder = BertEncoder(BertConfig(**config.model))
    tokens = jax.ShapeDtypeStruct((1, 8), "int32")
    tree = jax.eval_shape(
        lambda *x: encoder.init(jax.random.key(0), *x, deterministic=True), *[tokens] * 3
    )
    total = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nn.unbox(tree)))
    padding = encoder.config.padded_vocab_size - config.model.vocab_size
    assert total - padding * 128 == num_parameters
    assert config.train.num_steps == num_steps
    assert config.model.hidden_dropout_prob == config.model.attention_probs_dropout_prob == dropout
