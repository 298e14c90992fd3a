"""BERT's Adam and LAMB, as chains of optax transformations."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

# Parameters stacked over layers by nn.scan live below this name.
STACKED_LAYERS = "layers"


class AdamMoments(NamedTuple):
    """float32 first and second moments, shaped as the parameters; steps taken, int32."""

    count: jax.Array
    mu: Any
    nu: Any


def make_optimizer(
    config: ConfigDict,
    schedule: Callable[[jax.typing.ArrayLike], jax.Array],
    scaling: optax.GradientTransformation | None = None,
) -> optax.GradientTransformation:
    """Builds the optimizer of `config.optimizer`.

    adamw: google-research/bert's AdamWeightDecayOptimizer. It clips by the global norm, then
    updates by the rate times m / (sqrt(v) + eps) + decay * parameter.
    lamb: the same update, scaled for each tensor of each layer by |parameter| / |update| (You et
    al. 2020, algorithm 2), except for LayerNorm and biases.

    Args:
      config: `config.optimizer`.
      schedule: Maps the step, from 0, to the learning rate.
      scaling: A transformation to apply just before the learning rate.
    """
    chain = []
    if config.max_grad_norm:
        chain.append(optax.clip_by_global_norm(config.max_grad_norm))
    chain.append(
        scale_by_adam(
            config.b1, config.b2, config.eps, config.bias_correction, config.eps_before_correction
        )
    )
    mask = None if config.decay_all else decayed
    chain.append(optax.add_decayed_weights(config.weight_decay, mask=mask))
    if config.name == "lamb":
        chain.append(optax.masked(scale_by_layer_trust_ratio(), decayed))
    if scaling:
        chain.append(scaling)
    chain.append(optax.scale_by_learning_rate(schedule))
    return optax.chain(*chain)


def decayed(params: Any) -> Any:
    """Makes a tree of bools: whether BERT decays and LAMB adapts a parameter.

    LayerNorm and biases are excluded by their names, as in the original; the embeddings are not.
    """

    def decays(path, _):
        names = names_of(path)
        return not any("layer_norm" in name for name in names) and not names[-1].endswith("bias")

    return jax.tree_util.tree_map_with_path(decays, params)


def scale_by_adam(
    b1: float, b2: float, eps: float, bias_correction: bool, eps_before_correction: bool = False
) -> optax.GradientTransformation:
    """Makes a transformation of gradients to Adam's direction m / (sqrt(v) + eps).

    `bias_correction` divides the moments m and v by 1 - b^t first. optax's own transformation
    always does that; the original BERT never does. With `eps_before_correction` the direction is
    m / (1 - b1^t) * sqrt(1 - b2^t) / (sqrt(v) + eps), as in fairseq's adam.py (Kingma & Ba 2015,
    end of section 2).
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamMoments(jnp.zeros([], jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(updates, state, params=None):
        mu = optax.tree_utils.tree_update_moment(updates, state.mu, b1, 1)
        nu = optax.tree_utils.tree_update_moment_per_elem_norm(updates, state.nu, b2, 2)
        count = optax.safe_increment(state.count)
        mu_hat, nu_hat, scaled_eps = mu, nu, eps
        if bias_correction:
            mu_hat, nu_hat = _corrected(mu, b1, count), _corrected(nu, b2, count)
            if eps_before_correction:
                # The same quotient, with the factor sqrt(1 - b2^t) moved into eps.
                scaled_eps = eps / jnp.sqrt(_total_weight(b2, count))
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + scaled_eps), mu_hat, nu_hat)
        return updates, AdamMoments(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _corrected(moments: Any, decay: float, count: jax.Array) -> Any:
    weight = _total_weight(decay, count)
    return jax.tree.map(lambda moment: moment / weight, moments)


def _total_weight(decay: float, count: jax.Array) -> jax.typing.ArrayLike:
    """Computes 1 - decay^count.

    expm1 keeps the digits of float32: 1 - 0.999^t loses three of seven in the first steps.
    """
    return -jnp.expm1(count * math.log(decay)) if decay else 1.0


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """Scales by LAMB's trust ratio, which is 1 where a norm is 0.

    optax's own version takes one norm per tensor. The tensors of scanned layers are stacked; each
    slice needs its own norm, or scanning would change the optimizer.
    """

    def scale(path, update, param):
        stacked = STACKED_LAYERS in names_of(path)
        axes = tuple(range(1 if stacked else 0, param.ndim))
        param_norm = jnp.sqrt(jnp.sum(jnp.square(param), axis=axes, keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), axis=axes, keepdims=True))
        defined = (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(defined, param_norm / jnp.where(defined, update_norm, 1.0), 1.0)

    def update(updates, state, params=None):
        return jax.tree_util.tree_map_with_path(scale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def names_of(path: tuple) -> list[str]:
    """Returns the names on the path to a leaf of a pytree."""
    return [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
