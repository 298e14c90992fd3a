"""Which positions attend to which, and that a causal model ignores later tokens."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.attention import attention_bias
from bert_jax.models.bert_encoder import BertEncoder
from tests.models.common import PLAIN

MASK_BxL = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
SEGMENTS_BxL = np.array([[1, 1, 2, 2, 2, 3, 3], [1, 2, 2, 2, 0, 0, 0]])


@pytest.mark.parametrize(
    ("causal", "window", "segmented"),
    itertools.product([False, True], [None, 0, 1, 3], [False, True]),
)
def test_bias_against_a_loop(causal, window, segmented):
    segments = SEGMENTS_BxL if segmented else None
    bias = attention_bias(
        jnp.asarray(MASK_BxL), causal=causal, window=window, segment_ids_BxL=segments
    )
    # The TPU kernel relies on a query axis of size 1 if only padding is masked.
    only_padding = not (causal or window is not None or segmented)
    assert bias.shape == (2, 1, 1 if only_padding else 7, 7) and bias.dtype == jnp.float32
    bias = np.broadcast_to(bias, (2, 1, 7, 7))
    for b, query, key in itertools.product(range(2), range(7), range(7)):
        allowed = MASK_BxL[b, key] == 1
        allowed &= key <= query or not causal
        allowed &= window is None or abs(query - key) <= window
        allowed &= not segmented or SEGMENTS_BxL[b, query] == SEGMENTS_BxL[b, key]
        assert bias[b, 0, query, key] == (0 if allowed else np.finfo(np.float32).min)


@pytest.mark.parametrize("causal", [False, True])
def test_only_a_causal_encoder_ignores_later_tokens(params, batch, causal):
    encoder = BertEncoder(dataclasses.replace(PLAIN, causal=causal))
    mask_BxL = batch["attention_mask"]
    last_B = mask_BxL.sum(axis=1) - 1

    @jax.jit
    def encode(ids_BxL):
        inputs = ids_BxL, batch["token_type_ids"], mask_BxL
        return encoder.apply({"params": params["bert"]}, *inputs, deterministic=True)

    hidden_BxLxD, pooled_BxD = encode(batch["input_ids"])
    # The pooled token is the last real one in a causal model, otherwise the first.
    dense = params["bert"]["pooler"]["dense"]
    token_BxD = hidden_BxLxD[np.arange(5), last_B if causal else 0]
    expected = np.tanh(token_BxD @ dense["kernel"] + dense["bias"])
    assert len(set(last_B)) > 1
    np.testing.assert_allclose(pooled_BxD, expected, atol=1e-6)

    for position in (1, 4):
        ids_BxL = batch["input_ids"].copy()
        ids_BxL[:, position] = (ids_BxL[:, position] + 1) % 101
        changed_BxLxD, _ = encode(ids_BxL)
        before = np.abs(changed_BxLxD - hidden_BxLxD)[:, :position].max()
        assert (before == 0) if causal else (before > 1e-3)
        assert np.abs(changed_BxLxD - hidden_BxLxD)[:, position:].max() > 1e-3
