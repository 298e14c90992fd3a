"""The lookup of word embeddings and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.input_embeddings import embedded_rows

TABLE_WxE = jnp.asarray(np.random.default_rng(0).normal(size=(50, 8)), jnp.float32)
IDS_BxL = jnp.asarray(np.random.default_rng(1).integers(0, 50, (4, 30)), jnp.int32)


def gradient(lookup, table_WxE, ids_BxL, weights_BxLxE):
    return jax.grad(lambda table: jnp.sum(lookup(table, ids_BxL) * weights_BxLxE))(table_WxE)


def test_float32_gradients_have_the_bits_of_indexing():
    weights_BxLxE = jnp.asarray(np.random.default_rng(2).normal(size=(4, 30, 8)), jnp.float32)
    plain = gradient(lambda table, ids: table[ids], TABLE_WxE, IDS_BxL, weights_BxLxE)
    np.testing.assert_array_equal(gradient(embedded_rows, TABLE_WxE, IDS_BxL, weights_BxLxE), plain)
    np.testing.assert_array_equal(embedded_rows(TABLE_WxE, IDS_BxL), TABLE_WxE[IDS_BxL])


def test_bfloat16_rows_are_summed_in_float32():
    table_WxE = TABLE_WxE.astype(jnp.bfloat16)
    rows_BxLxE = embedded_rows(table_WxE, IDS_BxL)
    assert rows_BxLxE.dtype == jnp.float32
    np.testing.assert_array_equal(rows_BxLxE, table_WxE.astype(jnp.float32)[IDS_BxL])
    ids_BxL = jnp.full((4, 256), 7)
    found = gradient(embedded_rows, table_WxE, ids_BxL, jnp.ones((4, 256, 8)))
    # A sum of ones in bfloat16 would stop at 256.
    assert found.dtype == jnp.bfloat16 and found[7].tolist() == [1024.0] * 8
    assert not found[:7].any() and not found[8:].any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_add_up_over_devices(dtype, monkeypatch):
    """Two shards of the batch, as on a mesh, give the same sum but for its rounding."""
    weights_BxLxE = jnp.asarray(np.random.default_rng(2).normal(size=(4, 30, 8)), jnp.float32)
    table_WxE = TABLE_WxE.astype(dtype)
    whole = gradient(embedded_rows, table_WxE, IDS_BxL, weights_BxLxE)
    monkeypatch.setattr("bert_jax.models.input_embeddings.num_batch_shards", lambda: 2)
    split = gradient(embedded_rows, table_WxE, IDS_BxL, weights_BxLxE)
    tolerance = 2**-7 if dtype == jnp.bfloat16 else 1e-6
    np.testing.assert_allclose(
        split.astype(jnp.float32), whole.astype(jnp.float32), rtol=tolerance, atol=2 * tolerance
    )
    assert split.dtype == dtype
