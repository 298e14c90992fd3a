"""Learning rates that differ between layers."""

import flax.linen as nn
import numpy as np

from bert_jax.finetuning.layer_rates import layer_factors
from bert_jax.heads import load_head
from bert_jax.models import BertConfig
from bert_jax.training.state import abstract_params
from tests.small import flat


def test_factors_fall_from_the_head_to_the_embeddings():
    model = load_head("sequence_classification").make_model(BertConfig(50, 24, 2, 4, 40), 2)
    factors = flat(layer_factors(nn.unbox(abstract_params(model)), 2, 0.5))
    expected = {
        "bert/embeddings/word_embeddings": 0.125,
        "bert/embeddings/layer_norm/scale": 0.125,
        "bert/encoder/layer_0/attention/query_kernel": 0.25,
        "bert/encoder/layer_1/output_layer_norm/bias": 0.5,
        "bert/pooler/dense/kernel": 1.0,
        "classifier/dense/bias": 1.0,
    }
    for name, factor in expected.items():
        assert factors[name] == factor, name


def test_shared_layers_the_projection_of_the_embeddings_and_the_last_norm():
    params = {
        "bert": {
            "embeddings": {"word_embeddings": np.zeros(1)},
            "embeddings_project": {"kernel": np.zeros(1)},
            "encoder": {
                "layer_0": {"output": {"kernel": np.zeros(1)}},
                "layer_norm": {"scale": np.zeros(1)},
            },
        }
    }
    factors = flat(layer_factors(params, 1, 0.5))
    assert factors["bert/encoder/layer_0/output/kernel"] == 0.5
    assert factors["bert/encoder/layer_norm/scale"] == 1.0
    assert factors["bert/embeddings_project/kernel"] == 0.25
    assert factors["bert/embeddings/word_embeddings"] == 0.25
