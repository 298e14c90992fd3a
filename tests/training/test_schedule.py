"""Stages and the learning rate over them."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.config import batch_ramp, default_config, stage, stages_of_tokens, validate
from bert_jax.training.schedule import make_schedule, make_weight_decay, warmup_warnings
from bert_jax.training.stages import resolve_stages, stages_of_run


def stage_of(fraction, **kwargs):
    return stage(fraction=fraction, max_seq_length=8, max_predictions_per_seq=2, **kwargs)


def schedule_of(config):
    stages = resolve_stages(config)
    return make_schedule(stages), stages


def test_schedule_of_bert():
    rate, stages = schedule_of(default_config())
    assert [(s.first_step, s.end_step) for s in stages] == [(0, 900_000), (900_000, 1_000_000)]
    assert rate(0) == 0
    np.testing.assert_allclose(rate(5_000), 0.5e-4, rtol=1e-6)
    np.testing.assert_allclose(rate(9_999), 1e-4 * 0.9999, rtol=1e-6)
    # The decay is counted from step 0, so the peak is never reached.
    np.testing.assert_allclose(rate(10_000), 1e-4 * 0.99, rtol=1e-6)
    np.testing.assert_allclose(rate(500_000), 0.5e-4, rtol=1e-6)
    # Both stages share one curve.
    np.testing.assert_allclose(rate(899_999), 1e-4 * 0.100001, rtol=1e-5)
    np.testing.assert_allclose(rate(900_000), 1e-4 * 0.1, rtol=1e-5)
    np.testing.assert_allclose(rate(999_999), 1e-4 * 1e-6, rtol=0.05)
    assert rate(1_000_000) == 0 and rate(1_000_001) == 0


@pytest.mark.parametrize(("power", "warmup"), [(1.0, 6.0), (2.0, 6.0), (1.0, 0.0)])
def test_the_shapes_of_roberta_and_electra(power, warmup):
    """Compares with fairseq's polynomial_decay_schedule.py and electra's optimization.py."""
    config = default_config()
    config.train.num_steps = total = 24
    config.train.stages = (stage_of(1.0),)
    config.schedule.update(peak_learning_rate=2e-3, warmup_steps=warmup, decay_power=power)

    def fairseq(step):
        if warmup and step <= warmup:
            return 2e-3 * step / warmup
        return 2e-3 * (1 - (step - warmup) / (total - warmup)) ** power

    def electra(step):
        factor = min(1.0, step / warmup) if warmup else 1.0
        return 2e-3 * (1 - step / total) ** power * factor

    for shape, formula in (("linear_after_warmup", fairseq), ("product", electra)):
        config.schedule.shape = shape
        rate, _ = schedule_of(config)
        for step in range(total + 1):
            np.testing.assert_allclose(rate(step), formula(step), rtol=1e-5, atol=1e-10)


def test_the_shape_of_xlm():
    """Compares with `get_lr_for_step` of AdamInverseSqrtWithWarmup in XLM's optim.py."""
    config = default_config()
    config.train.num_steps, config.train.stages = 1000, (stage_of(1.0),)
    config.schedule.update(shape="inverse_root", peak_learning_rate=6e-4, warmup_steps=24.0)
    rate, _ = schedule_of(config)

    def xlm(updates):
        if updates < 24:
            return 1e-7 + updates * (6e-4 - 1e-7) / 24
        return 6e-4 * 24**0.5 * updates**-0.5

    for step in range(1000):
        np.testing.assert_allclose(rate(step), xlm(step), rtol=1e-6)
    # A quarter of the peak after 16 times the warm-up, however long the run is.
    np.testing.assert_allclose(rate(16 * 24), 1.5e-4, rtol=1e-6)
    config.train.num_steps = 500
    assert schedule_of(config)[0](400) == rate(400)
    config.schedule.warmup_steps = 0.0
    with pytest.raises(UserError, match="steps 1 to 500 have the shape inverse_root without"):
        schedule_of(config)
    # A small fraction is one step.
    config.schedule.warmup_steps = 1e-3
    np.testing.assert_allclose(schedule_of(config)[0](1), 6e-4, rtol=1e-6)


def test_the_shapes_that_end_at_a_factor():
    """Values by hand for a peak of 2, 4 steps of warm-up, 8 of decay, and an end at 0.1 of it."""
    config = default_config()
    config.train.num_steps, config.train.stages = 12, (stage_of(1.0),)
    config.schedule.update(peak_learning_rate=2.0, warmup_steps=4.0, end_factor=0.1)
    values = {
        "linear": {6: 1.55, 8: 1.1, 12: 0.2},
        "one_minus_sqrt": {6: 1.1, 8: 0.7272078, 12: 0.2},
        "cosine": {6: 1.7363961, 8: 1.1, 12: 0.2},
        "constant": {6: 2.0, 8: 2.0, 12: 2.0},
    }
    for shape, expected in values.items():
        config.schedule.shape = shape
        rate, _ = schedule_of(config)
        for step, value in {0: 0.0, 1: 0.5, 4: 2.0, **expected}.items():
            np.testing.assert_allclose(rate(step), value, rtol=1e-6, err_msg=f"{shape} {step}")


def test_the_phases_of_modernbert_base():
    """yamls/modernbert/modernbert-base-*.yaml, with a ramp of six batch sizes over 50B tokens."""
    config = default_config()
    first = {"max_seq_length": 1024, "weight_decay": 0.0125}
    later = {
        "max_seq_length": 8192,
        "batch_size": 576,
        "weight_decay": 0.0333,
        "peak_learning_rate": 3e-4,
    }
    config.train.num_steps, config.train.stages = stages_of_tokens(
        [
            *batch_ramp(50e9, range(768, 4608 + 1, 768), **first),
            {"tokens": 1.669e12, "batch_size": 4608, **first},
            {"tokens": 250e9, "shape": "constant", **later},
            {"tokens": 50e9, "shape": "one_minus_sqrt", "end_factor": 0.001, **later},
        ]
    )
    config.model.max_position_embeddings = 8192
    # 3B tokens: the 3,028 steps of the first size, and 393 of the second.
    config.schedule.update(shape="constant", peak_learning_rate=8e-4, warmup_steps=3421.0)
    validate(config)
    rate, stages = schedule_of(config)
    *ramp, stable, extension, decay = stages
    assert [s.batch_size for s in ramp] == [768, 1536, 2304, 3072, 3840, 4608]
    assert [s.num_steps for s in stages] == [3028] * 6 + [353_707, 52_982, 10_596]
    tokens = [s.num_steps * s.batch_size * s.max_seq_length for s in stages]
    np.testing.assert_allclose(sum(tokens[:7]), 1.719e12, rtol=1e-4)
    np.testing.assert_allclose(tokens[7:], [250e9, 50e9], rtol=1e-4)
    values = {
        0: 0.0,
        1_000: 2.338497e-4,
        3_421: 8e-4,
        stable.end_step - 1: 8e-4,
        extension.first_step: 3e-4,
        extension.end_step - 1: 3e-4,
        decay.first_step: 3e-4,
        decay.first_step + 2_649: 1.5015e-4,  # A quarter of the way: 0.001 + 0.999 / 2.
        decay.end_step: 3e-7,
    }
    for step, value in values.items():
        np.testing.assert_allclose(rate(step), value, rtol=2e-6, err_msg=str(step))
    weight_decay = make_weight_decay(stages)
    first = extension.first_step
    for step, value in (
        (0, 0.0125),
        (first - 1, 0.0125),
        (first, 0.0333),
        (decay.end_step, 0.0333),
    ):
        np.testing.assert_allclose(weight_decay(jnp.int32(step)), value, rtol=1e-6)


def test_each_stage_of_lambs_recipe_has_its_own_curve():
    """You et al. 2020: 7,038 + 1,563 steps, 6e-3 and 4e-3, warm-up .2843 and .128."""
    config = default_config()
    config.train.num_steps = 8601
    config.train.stages = (
        stage_of(7038 / 8601, peak_learning_rate=6e-3, warmup_steps=0.2843),
        stage_of(1563 / 8601, peak_learning_rate=4e-3, warmup_steps=0.128),
    )
    config.schedule.decay_power = 0.5
    rate, stages = schedule_of(config)
    assert [(s.first_step, s.end_step) for s in stages] == [(0, 7038), (7038, 8601)]
    for first, total, peak, warmup in ((0, 7038, 6e-3, 2000), (7038, 1563, 4e-3, 200)):
        assert rate(first) == 0
        np.testing.assert_allclose(rate(first + 100), peak * 100 / warmup, rtol=1e-5)
        end = first + warmup
        np.testing.assert_allclose(rate(end - 1), peak * (warmup - 1) / warmup, rtol=1e-5)
        np.testing.assert_allclose(rate(end), peak * (1 - warmup / total) ** 0.5, rtol=1e-5)
        last = total - 1
        np.testing.assert_allclose(rate(first + last), peak * (1 / total) ** 0.5, rtol=1e-3)


def test_stages_share_a_curve_around_one_with_its_own():
    config = default_config()
    config.train.num_steps = 100
    config.schedule.update(peak_learning_rate=1.0, warmup_steps=0.0)
    config.train.stages = (
        stage_of(0.4),
        stage_of(0.2, peak_learning_rate=5.0),
        stage_of(0.4),
    )
    rate, _ = schedule_of(config)
    np.testing.assert_allclose(rate(39), 1 - 39 / 80, rtol=1e-6)
    np.testing.assert_allclose(rate(40), 5.0, rtol=1e-6)
    np.testing.assert_allclose(rate(59), 5.0 / 20, rtol=1e-6)
    np.testing.assert_allclose(rate(60), 1 - 40 / 80, rtol=1e-6)
    np.testing.assert_allclose(rate(99), 1 / 80, rtol=1e-4)


@settings(max_examples=50)
@given(
    fractions=st.lists(st.integers(0, 1000), min_size=1, max_size=7).filter(any),
    num_steps=st.integers(1, 2_000_000),
)
def test_stages_cover_every_step_once(fractions, num_steps):
    config = default_config()
    config.train.num_steps = num_steps
    config.train.stages = tuple(stage_of(fraction / sum(fractions)) for fraction in fractions)
    stages = resolve_stages(config)
    edges = [0]
    for s in stages:
        assert s.first_step == edges[-1] < s.end_step
        edges.append(s.end_step)
        # At most half a step off at either end.
        assert abs(s.num_steps - num_steps * fractions[s.index] / sum(fractions)) <= 1 + 1e-6
    assert edges[-1] == num_steps


@pytest.mark.parametrize("fractions", [(0.333333, 0.333333, 0.333334), (0.3333333,) * 3])
def test_fractions_rounded_by_hand_still_cover_every_step(fractions):
    """Fractions that validation accepts as a sum of 1 must not lose the last step."""
    config = default_config()
    config.train.num_steps = 10_000_000
    config.train.stages = tuple(stage_of(fraction) for fraction in fractions)
    validate(config)
    assert resolve_stages(config)[-1].end_step == 10_000_000


def test_a_warmup_that_is_longer_than_the_run_is_reported():
    config = default_config()
    for num_steps, expected in ((10_001, []), (10_000, ["10000: in 10,000 steps the learning"])):
        config.train.num_steps = num_steps
        found = warmup_warnings(resolve_stages(config))
        assert len(found) == len(expected) and all(map(str.__contains__, found, expected))
    config.schedule.warmup_steps = 0.5
    assert not warmup_warnings(resolve_stages(config))


@pytest.mark.parametrize(
    ("num_steps", "expected"),
    # The last case would end in the first stage; whether that has run is checked elsewhere.
    [(100, [90, 100]), (200, [90, 200]), (96, [90, 96]), (80, [72, 80])],
)
def test_the_last_stage_takes_the_further_steps_of_a_run(num_steps, expected):
    before = default_config()
    before.train.num_steps = 100
    # The second time, the same command continues the longer run, and nothing changes.
    for _ in range(2):
        now = default_config()
        now.train.num_steps = num_steps
        now.train.stages = stages_of_run(before, now)
        assert [stage.end_step for stage in resolve_stages(now)] == expected
        before = now
