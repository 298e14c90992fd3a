"""The learning rate and the weight decay as functions of the step."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.base.errors import UserError
from bert_jax.config.common import POWER_SHAPES
from bert_jax.training.optimizer import Schedule
from bert_jax.training.stages import Curve, Stage

# `warmup_init_lr` of AdamInverseSqrtWithWarmup in XLM's optim.py.
_INVERSE_ROOT_START = 1e-7


def make_schedule(stages: Sequence[Stage]) -> Schedule:
    """Makes the schedule: a function from a step, counted from 0, to a float32 learning rate.

    `config.schedule.shape` has the formulas. bert is that of google-research/bert's
    optimization.py, linear_after_warmup of fairseq's polynomial_decay_schedule.py, product of
    electra's optimization.py, inverse_root of XLM's optim.py, and the others are those of
    ModernBERT's scheduler.py.

    A stage with its own peak or shape has its own curve, counted from its first step (the LAMB
    recipe, You et al. 2020); all other stages share one curve.
    """

    for stage in stages:
        if stage.curve.shape == "inverse_root" and not stage.curve.num_warmup_steps:
            raise UserError(
                f"steps {stage.first_step + 1:,} to {stage.end_step:,} have the shape inverse_root "
                "without a warm-up, from whose end the decay is counted; set the warmup_steps of "
                "config.schedule or of the stage in config.train.stages"
            )

    def learning_rate(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        rate = jnp.float32(0.0)
        for stage in stages:
            local = step - stage.first_step
            if stage.curve.steps_before is not None:
                local += stage.curve.steps_before
            rate = jnp.where(step >= stage.first_step, _rate(stage.curve, local), rate)
        return rate

    return learning_rate


def _rate(curve: Curve, step: jax.Array) -> jax.Array:
    peak, total, warmup_steps = curve.peak_learning_rate, curve.num_steps, curve.num_warmup_steps
    if curve.shape == "inverse_root":
        rising = _INVERSE_ROOT_START + (peak - _INVERSE_ROOT_START) * step / warmup_steps
        falling = peak * jnp.sqrt(warmup_steps / jnp.maximum(step, 1.0))
        return jnp.where(step < warmup_steps, rising, falling)
    start = 0 if curve.shape in ("bert", "product") else warmup_steps
    progress = (step - start) / max(total - start, 1)
    if curve.shape in POWER_SHAPES:
        decayed = peak * jnp.maximum(1.0 - progress, 0.0) ** curve.decay_power
    elif curve.shape == "constant":
        decayed = jnp.float32(peak)
    else:
        progress = jnp.clip(progress, 0.0, 1.0)
        form = {
            "linear": 1.0 - progress,
            "one_minus_sqrt": 1.0 - jnp.sqrt(progress),
            "cosine": 0.5 + 0.5 * jnp.cos(jnp.pi * progress),
        }[curve.shape]
        decayed = peak * (curve.end_factor + (1.0 - curve.end_factor) * form)
    if not warmup_steps:
        return decayed
    if curve.shape == "product":
        return decayed * jnp.minimum(step / warmup_steps, 1.0)
    return jnp.where(step < warmup_steps, peak * step / warmup_steps, decayed)


def make_weight_decay(stages: Sequence[Stage]) -> float | Schedule:
    """Returns the weight decay of the run; a function of the step if stages differ in it."""
    first, *others = (stage.weight_decay for stage in stages)
    if all(decay == first for decay in others):
        return first

    def weight_decay(step: jax.typing.ArrayLike) -> jax.Array:
        decay = jnp.float32(first)
        for stage in stages:
            decay = jnp.where(step >= stage.first_step, stage.weight_decay, decay)
        return decay

    return weight_decay


def warmup_warnings(stages: Sequence[Stage]) -> list[str]:
    """Warns of each warm-up that is longer than its curve, in one sentence."""
    warnings: dict[str, None] = {}
    for stage in stages:
        curve = stage.curve
        if curve.num_warmup_steps < curve.num_steps:
            continue
        key = f"train.stages[{stage.index}]"
        if curve.steps_before is not None:
            key = "schedule"
        warnings[
            f"config.{key}.warmup_steps is {curve.warmup_steps:g}: in {curve.num_steps:,} steps "
            "the learning rate never reaches its peak"
        ] = None
    return list(warnings)
