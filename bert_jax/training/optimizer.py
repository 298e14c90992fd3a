"""BERT's Adam, LAMB, StableAdamW and Muon, as chains of optax transformations."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from bert_jax.models.input_embeddings import has_vocabulary
from bert_jax.models.layers import Matrix

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]
# The usual root mean square of Adam's directions (Liu et al. 2025, section 2.2).
_USUAL_RMS = 0.2


class AdamMoments(NamedTuple):
    """float32 first and second moments, shaped as the parameters; steps taken, int32."""

    count: jax.Array
    mu: Any
    nu: Any


def make_optimizer(
    config: ConfigDict,
    schedule: Schedule,
    weight_decay: float | Schedule,
    vocab_size: int,
    scaling: optax.GradientTransformation | None = None,
    matrices: Mapping[str, Matrix] = MappingProxyType({}),
) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer of `config.optimizer`.

    adamw: google-research/bert's AdamWeightDecayOptimizer. It clips by the global norm, then
    updates by the rate times m / (sqrt(v) + eps) + decay * parameter.
    lamb: the same update, scaled for each tensor by |parameter| / |update| (You et al. 2020,
    algorithm 2), except for LayerNorm and biases.
    stable_adamw: adamw's update, divided for each tensor by max(1, RMS), where RMS is the root mean
    square of g / sqrt(v) (Wortsman et al. 2023, algorithm 2). As in ModernBERT, query, key and
    value are one tensor, and so are both inputs of a gated feed-forward layer.
    muon: Muon (Jordan 2024) for the matrices of the encoder's blocks, adamw for the rest. Muon's
    update is scaled to the usual size of Adam's, so that both have the same rate and decay (Liu et
    al. 2025, arXiv:2502.16982, equation 4).

    Args:
      schedule: Maps the step, from 0, to the learning rate.
      weight_decay: The weight decay, or a function that maps the step, from 0, to it.
      vocab_size: The tokens of the vocabulary. Tables may have more rows, which are always zero.
      matrices: The matrices among the parameters, by path; only Muon uses them.

    Returns:
      The optimizer. If `weight_decay` is a function, `update` needs the argument `step`.
    """
    direction = scale_by_adam(
        config.b1, config.b2, config.eps, config.bias_correction, config.eps_before_correction
    )
    decay = _add_weight_decay(weight_decay, None if config.decay_all else decayed)
    chain = []
    if config.max_grad_norm:
        chain.append(optax.clip_by_global_norm(config.max_grad_norm))
    if config.name == "stable_adamw":
        b2 = config.b2 if config.bias_correction else 0.0
        chain.append(_limit_updates(optax.chain(direction, decay), b2, config.eps, vocab_size))
    elif config.name == "muon":
        chain += [_muon_for_blocks(config.momentum, direction, matrices), decay]
    else:
        chain += [direction, decay]
    if config.name == "lamb":
        chain.append(optax.masked(scale_by_trust_ratio(), decayed))
    if scaling:
        chain.append(scaling)
    chain.append(optax.scale_by_learning_rate(schedule))
    return optax.with_extra_args_support(optax.chain(*chain))


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


def _add_weight_decay(
    weight_decay: float | Schedule, mask: Callable[[Any], Any] | None
) -> optax.GradientTransformation:
    """Makes a transformation that adds the decay to updates; its state is the same for both kinds.

    optax's own schedule of the decay counts steps in its state, so that a run could not change
    from a constant to a schedule.
    """
    if not callable(weight_decay):
        return optax.add_decayed_weights(weight_decay, mask)

    def update(updates, state, params=None, *, step, **_):
        decay = optax.add_decayed_weights(weight_decay(step), mask)
        return decay.update(updates, state, params)

    init = optax.add_decayed_weights(0.0, mask).init
    return optax.GradientTransformationExtraArgs(init, update)


def _limit_updates(
    adam_with_decay: optax.GradientTransformationExtraArgs, b2: float, eps: float, vocab_size: int
) -> optax.GradientTransformationExtraArgs:
    """Divides Adam's updates, with the decay, by max(1, RMS of g / sqrt(v)).

    As in StableAdamW of torch-optimi, which ModernBERT uses, v is corrected (`b2` is 0 if it is
    not) and at least eps^2.
    """

    def update(gradients, state, params=None, **extra):
        updates, state = adam_with_decay.update(gradients, state, params, **extra)
        moments = state[0]
        nu_hat = _corrected(moments.nu, b2, moments.count)

        def mean_square(path, gradient, nu):
            square = jnp.square(gradient) / jnp.maximum(nu, eps**2)
            mean = jnp.mean(square, keepdims=True)
            # Rows that only pad the vocabulary are zero and do not count.
            is_padded = has_vocabulary("/".join(names_of(path)))
            return mean * (len(square) / vocab_size) if is_padded else mean

        means = defaultdict(list)
        squares = jax.tree_util.tree_map_with_path(mean_square, gradients, nu_hat)
        for path, square in jax.tree_util.tree_leaves_with_path(squares):
            means[_joint_name(path)].append(square)

        def limited(path, update):
            joint = means[_joint_name(path)]
            # The parts of a tensor have one size.
            return update / jnp.maximum(1.0, jnp.sqrt(sum(joint) / len(joint)))

        updates = jax.tree_util.tree_map_with_path(limited, updates)
        return updates, state

    return optax.GradientTransformationExtraArgs(adam_with_decay.init, update)


def _joint_name(path: tuple) -> str:
    """Returns the name of a tensor of ModernBERT: our weights that are parts of one share it."""
    name = "/".join(names_of(path)).replace("/gate/", "/intermediate/")
    return re.sub("/(query|key|value)_", "/", name)


def _muon_for_blocks(
    momentum: float, others: optax.GradientTransformation, matrices: Mapping[str, Matrix]
) -> optax.GradientTransformation:
    """Makes Muon's directions for the matrices of the encoder's blocks, and `others` elsewhere.

    Heads and their depth are one axis of a matrix; each expert has a matrix of its own.
    """
    axes_by_path = {
        path: optax.contrib.MuonDimensionNumbers(matrix.inputs, matrix.outputs)
        for path, matrix in matrices.items()
        if "encoder" in path.split("/")
    }

    def axes_of(updates):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: axes_by_path.get("/".join(names_of(path))), updates
        )

    def scaled(update, axes):
        sizes = [math.prod(update.shape[axis] for axis in side) for side in axes]
        return _USUAL_RMS * math.sqrt(max(sizes)) * update

    def scale(updates, params=None):
        return jax.tree.map(scaled, updates, axes_of(updates))

    def labels(params):
        return jax.tree_util.tree_map_with_path(
            lambda path, _: "muon" if "/".join(names_of(path)) in axes_by_path else "others", params
        )

    muon = optax.chain(
        optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=axes_of),
        optax.stateless(scale),
    )
    return optax.partition({"muon": muon, "others": others}, labels)


def scale_by_trust_ratio() -> optax.GradientTransformation:
    """Scales by LAMB's trust ratio, which is 1 where a norm is 0.

    optax's own version reads every tensor twice.
    """

    def scale(update, param):
        param_norm = jnp.sqrt(jnp.sum(jnp.square(param), keepdims=True))
        update_norm = jnp.sqrt(jnp.sum(jnp.square(update), keepdims=True))
        defined = (param_norm > 0) & (update_norm > 0)
        return update * jnp.where(defined, param_norm / jnp.where(defined, update_norm, 1.0), 1.0)

    return optax.stateless_with_tree_map(scale)


def names_of(path: tuple) -> list[str]:
    """Returns the names on the path to a leaf of a pytree."""
    return jax.tree_util.keystr(path, simple=True, separator="/").split("/")
