"""The vectors for which sentence-transformers 6.2 gave the recorded losses."""

import math

import jax
import numpy as np
import pytest


def wave(shape, start, scale=1):
    return scale * np.sin(start + np.arange(math.prod(shape))).reshape(shape)


def assert_value_and_norms(loss, arrays, value, norms):
    """Checks a loss and the norms of its gradients by the arrays, in float64 and float32."""
    for dtype, limit in ((np.float64, 1e-11), (np.float32, 1e-6)):
        with jax.enable_x64(dtype == np.float64):
            given = [array.astype(dtype) for array in arrays]
            found, gradients = jax.jit(jax.value_and_grad(loss, tuple(range(len(given)))))(*given)
        assert found.dtype == dtype
        assert float(found) == pytest.approx(value, rel=limit)
        # The norms were recorded with nine digits.
        measured = [np.linalg.norm(gradient) for gradient in gradients]
        np.testing.assert_allclose(measured, norms, rtol=max(limit, 2e-8))
