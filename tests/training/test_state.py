"""The state that each step updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training import state as state_lib
from bert_jax.training.state import TrainState


@pytest.mark.parametrize(("value", "expected"), [(1, True), (np.nan, False), (-np.inf, False)])
def test_a_state_is_finite_on_the_host_and_on_devices(value, expected):
    params = {"a": jnp.zeros(3), "b": jnp.full((2, 2), value, jnp.bfloat16)}
    state = TrainState(jnp.zeros([], jnp.int32), params, opt_state=())
    assert state.is_finite() is expected
    assert bool(state_lib._all_finite(jax.tree.leaves(state))) is expected
