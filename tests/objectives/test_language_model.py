"""The loss of terms that predict tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.objectives.language_model import token_sums


def test_gpus_have_the_same_loss_and_gradient_without_a_scatter(monkeypatch):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(3, 5, 97)), jnp.float32)
    ids, weights = rng.integers(0, 97, (3, 5)), jnp.asarray(rng.random((3, 5)), jnp.float32)

    def loss(logits):
        return token_sums(logits, ids, weights)

    def program(platform):
        traced = jax.jit(jax.grad(loss, has_aux=True)).trace(logits)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    assert "stablehlo.scatter" in program("cpu")
    assert "stablehlo.scatter" not in program("cuda")
    results = jax.value_and_grad(loss, has_aux=True)
    expected = results(logits)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, cuda, default: cuda(*x))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7),
        results(logits),
        expected,
    )
