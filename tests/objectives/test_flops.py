"""The analytic FLOPs of training on one sequence."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.heads import load_head
from bert_jax.models import BertConfig
from bert_jax.models.layers import Projection, matrices, matrix_init
from bert_jax.objectives.flops import (
    decoder_flops,
    pretraining_flops_per_sequence,
    products_per_token,
)
from bert_jax.objectives.task_losses import Labels
from bert_jax.objectives.terms import make_terms

BASE = BertConfig(30522, 768, 12, 12, 3072)


def bert_flops(config, length, predictions):
    return pretraining_flops_per_sequence(config, make_terms(), length, predictions)


def test_pretraining_by_hand():
    # S 2, P 1, N 1, H 2, F 3, V 5:
    # 3 * [2*2*1*(4*4 + 2*2*3) + 4*4*2*1 + 2*1*(4 + 10) + 2*4]
    small = BertConfig(5, 2, 1, 1, 3)
    assert bert_flops(small, 2, 1) == 3 * (112 + 32 + 28 + 8)
    # Without next-sentence prediction there is no pooler.
    masked_lm = make_terms(("masked_lm",))
    assert pretraining_flops_per_sequence(small, masked_lm, 2, 1) == 3 * (112 + 32 + 28)
    # FlauBERT's head is the decoder alone, and its classifier has no pooler.
    flaubert = dataclasses.replace(small, head_transform=False, pooler_act="none")
    assert pretraining_flops_per_sequence(flaubert, masked_lm, 2, 1) == 3 * (112 + 32 + 20)
    model = load_head("sequence_classification").make_model(flaubert, 5)
    assert Labels().flops(model, 2, 0) == 3 * (112 + 32 + 20)
    # In the left-to-right model, every position is predicted.
    next_token = make_terms(("next_token",))
    assert pretraining_flops_per_sequence(small, next_token, 2, 1) == 3 * (112 + 32 + 2 * 28)
    # BERT-base at 128 with 20 predictions: 3 * (21,743,271,936 + 603,979,776 + 961,228,800
    # + 1,179,648).
    assert bert_flops(BASE, 128, 20) == 69_928_980_480


def test_shared_heads_and_late_pooling_by_hand():
    """S 2, P 1, H 4, F 3, V 5: keys and values of one head of two are half as wide."""
    config = BertConfig(5, 4, 1, 2, 3, num_key_value_heads=1, classifier_pooling="late")
    config = dataclasses.replace(config, head_transform=False, tied_decoder=False)
    block = 2 * 2 * (2 * 4 * 4 + 2 * 4 * 2 + 2 * 4 * 3) + 4 * 4 * 4
    found = pretraining_flops_per_sequence(config, make_terms(("masked_lm",)), 2, 1)
    assert found == 3 * (block + 2 * 4 * 5)
    # The dense layer of a classifier of sequences reads both tokens; that of tokens has none.
    model = load_head("sequence_classification").make_model(config, 5)
    assert Labels().flops(model, 2, 0) == 3 * (block + 2 * 2 * 4 * 4 + 2 * 4 * 5)
    model = load_head("token_classification").make_model(config, 5)
    assert Labels().flops(model, 2, 0) == 3 * (block + 2 * 2 * 4 * 5)


def test_shared_layers_and_narrow_embeddings_by_hand():
    """S 2, P 1, N 3, H 2, F 3, V 5, E 7: each block counts 144 each time it runs."""
    albert = BertConfig(5, 2, 3, 1, 3, embedding_size=7, layer_groups=1)
    # The projection is 2*2*7*2, the head 2*1*(2*7 + 7*5).
    terms = make_terms(("masked_lm", "sentence_order"))
    found = pretraining_flops_per_sequence(albert, terms, 2, 1)
    assert found == 3 * (3 * 144 + 56 + 98 + 8)
    model = load_head("sequence_classification").make_model(albert, 5)
    assert Labels().flops(model, 2, 0) == 3 * (3 * 144 + 56 + 8 + 20)


class Experts(nn.Module):
    """A feed-forward layer of 8 experts, each token to 2 of them; no module refers to it."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden_BxLxD):
        c = self.config
        router = Projection(c, 8, ("embed", "experts"), name="router")(hidden_BxLxD)
        shapes = {
            "inner": ("embed", "mlp", (8, c.hidden_size, c.intermediate_size)),
            "outer": ("mlp", "embed", (8, c.intermediate_size, c.hidden_size)),
        }
        for name, (*axes, shape) in shapes.items():
            init = matrix_init(c, "experts", *axes, inputs=(1,), share=2 / 8)
            kernels_ExDxF = self.param(name, init, shape)
            hidden_BxLxD = jnp.einsum("BLD,EDF,BLE->BLF", hidden_BxLxD, kernels_ExDxF, router)
        return hidden_BxLxD


def test_experts_from_outside_count_for_their_share_of_the_tokens():
    experts = Experts(BertConfig(5, 4, 1, 1, 3))
    hidden = jax.ShapeDtypeStruct((1, 1, 4), "float32")
    assert products_per_token(experts, hidden) == 4 * 8 + 2 * (4 * 3 + 3 * 4)
    boxes = matrices(
        jax.eval_shape(experts.init, jax.random.key(0), jnp.zeros((1, 1, 4)))["params"]
    )
    assert (boxes["outer"].inputs, boxes["outer"].outputs) == ((1,), (2,))


def test_a_decoder_by_hand():
    """N 1 and 2, S 3, T 2, H 2, F 3, V 5: a decoder block is 2*2*28 + 4*4*2 + 4*5*4 + 4*6*2."""
    bart = BertConfig(5, 2, 1, 1, 3, num_decoder_layers=2)
    assert decoder_flops(bart, 3, 2) == 2 * (112 + 32 + 80 + 48) + 2 * 2 * 2 * 5
    # In pre-training, source and target are as long as the rows.
    encoder, decoder = 2 * 2 * 28 + 4 * 4 * 2, 2 * (112 + 32 + 64 + 32) + 40
    found = pretraining_flops_per_sequence(bart, make_terms(("denoising",)), 2, 1)
    assert found == 3 * (encoder + decoder)
