"""The learning-rate schedule: linear warm-up, then polynomial or inverse-root decay."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from bert_jax.training.stages import Stage

# `warmup_init_lr` of AdamInverseSqrtWithWarmup in XLM's optim.py.
_INVERSE_ROOT_START = 1e-7


def make_schedule(
    schedule: ConfigDict, stages: Sequence[Stage]
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
    """Makes the schedule: a function from a step, counted from 0, to a float32 learning rate.

    With `shape` bert, as in google-research/bert's optimization.py, the rate is
    `peak * s / warmup` in the warm-up, then `peak * (1 - s / total)^power`. s counts from the start
    of the run, not from the end of the warm-up, so the rate never quite reaches the peak. With
    linear_after_warmup, as in fairseq's polynomial_decay_schedule.py, the rate is then
    `peak * (1 - (s - warmup) / (total - warmup))^power`. With product, as in electra's
    optimization.py, it is `peak * min(1, s / warmup) * (1 - s / total)^power`. With inverse_root,
    as in XLM's optim.py, the rate is `1e-7 + (peak - 1e-7) * s / warmup` in the warm-up, then
    `peak * (warmup / s)^0.5`, whatever the total.

    A stage with its own peak has its own curve, counted from its first step (the LAMB recipe, You
    et al. 2020); all other stages share one curve. Each part of a stage's extra steps has its own
    curve too.
    """
    shared = [stage for stage in stages if not stage.peak_learning_rate]
    # Stages that share a curve need not be adjacent; the steps between them do not count.
    shared_steps = sum(stage.num_planned_steps for stage in shared)

    def curve(step, peak, warmup, total):
        # A fraction is rounded down to full steps, as in run_classifier.py.
        warmup_steps = int(warmup * total) if warmup < 1 else warmup
        if schedule.shape == "inverse_root":
            warmup_steps = max(1, warmup_steps)
            rising = _INVERSE_ROOT_START + (peak - _INVERSE_ROOT_START) * step / warmup_steps
            falling = peak * jnp.sqrt(warmup_steps / jnp.maximum(step, 1.0))
            return jnp.where(step < warmup_steps, rising, falling)
        start = warmup_steps if schedule.shape == "linear_after_warmup" else 0
        progress = (step - start) / (total - start)
        decayed = peak * jnp.maximum(1.0 - progress, 0.0) ** schedule.decay_power
        if not warmup_steps:
            return decayed
        if schedule.shape == "product":
            return decayed * jnp.minimum(step / warmup_steps, 1.0)
        return jnp.where(step < warmup_steps, peak * step / warmup_steps, decayed)

    def learning_rate(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        rate, before = jnp.float32(0.0), 0
        for stage in stages:
            local = step - stage.first_step
            if stage.peak_learning_rate:
                stage_rate = curve(
                    local, stage.peak_learning_rate, stage.warmup_steps, stage.num_planned_steps
                )
            else:
                stage_rate = curve(
                    local + before,
                    schedule.peak_learning_rate,
                    schedule.warmup_steps,
                    shared_steps,
                )
                before += stage.num_planned_steps
            rate = jnp.where(step >= stage.first_step, stage_rate, rate)
            first_step = stage.first_step + stage.num_planned_steps
            peak = stage.peak_learning_rate or schedule.peak_learning_rate
            for steps in stage.extra_steps:
                extra_rate = curve(
                    step - first_step,
                    stage.extra_peak_learning_rate or peak,
                    stage.extra_warmup_steps,
                    steps,
                )
                rate = jnp.where(step >= first_step, extra_rate, rate)
                first_step += steps
        return rate

    return learning_rate


def warmup_warnings(schedule: ConfigDict, stages: Sequence[Stage]) -> list[str]:
    """Warns, in a list of one sentence, if the warm-up is longer than the run."""
    num_steps = sum(stage.num_planned_steps for stage in stages)
    if stages[0].peak_learning_rate or schedule.warmup_steps < num_steps:
        return []
    return [
        f"config.schedule.warmup_steps is {schedule.warmup_steps:g}: in {num_steps:,} steps the "
        "learning rate never reaches its peak"
    ]
