"""Runs whose stages have their own rates, decays and masks are compiled once and resumed."""

import numpy as np
import pytest

from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.config import stage
from bert_jax.interop import formats
from bert_jax.training import trainer
from bert_jax.training.metrics import read_metrics
from tests import cheap, runs
from tests.small_run import small_run

SIZES = {"max_seq_length": 16, "max_predictions_per_seq": 4}


def phases(texts):
    """Returns a run of three phases with batches of one shape: 6, 3 and 3 steps."""
    stages = (
        stage(fraction=0.5, **SIZES),
        stage(fraction=0.25, peak_learning_rate=5e-3, weight_decay=0.5, **SIZES),
        stage(
            fraction=0.25,
            shape="one_minus_sqrt",
            end_factor=0.25,
            masked_lm_prob=0.08,
            weight_decay=0.0,
            **SIZES,
        ),
    )
    schedule = {"schedule.shape": "constant", "schedule.warmup_steps": 2.0}
    terms = {
        "objective.terms": ("masked_lm",),
        "objective.weights": (1.0,),
        "data.rows": "segments",
    }
    values = {"train.num_steps": 12, "train.stages": stages, "schedule.peak_learning_rate": 0.01}
    return small_run(texts, **values, **schedule, **terms)


@pytest.mark.slow
def test_phases_with_rows_and_rotary_bases_of_their_own(texts, tmp_path):
    """A checkpoint is evaluated with the rows and bases of its step, and exported with these."""
    keys = {
        "objective.terms": ("masked_lm",),
        "objective.weights": (1.0,),
        "data.rows": "segments",
        "eval.every_steps": 6,
        "checkpoint.every_steps": 3,
        "sinusoidal_positions": 0.0,
        "schedule.shape": "constant",
        "schedule.warmup_steps": 2.0,
        "schedule.peak_learning_rate": 0.01,
        "model.num_hidden_layers": 2,
        "model.local_attention": 4,
        "model.global_every": 2,
    }
    later = {"rope_theta": 100.0, "local_rope_theta": 50.0}
    longer = {"max_seq_length": 24, "max_predictions_per_seq": 6}
    own = [stage(fraction=0.5, **SIZES), stage(fraction=0.5, **later, **longer)]
    both = small_run(texts, **keys, **{"model.rope_theta": 10.0, "train.num_steps": 12})
    both.train.stages = own
    of_both = pretrain(both, tmp_path / "both")

    assert formats.read(tmp_path / "both" / "checkpoints" / "6").model["rope_theta"] == 10
    final = formats.read(tmp_path / "both")
    assert {key: final.model[key] for key in later} == later
    lines = read_metrics(tmp_path / "both")
    losses = {line["step"]: line["eval_mlm_loss"] for line in lines if "eval_mlm_loss" in line}
    assert evaluate_workdir(tmp_path / "both", step=6)["mlm_loss"] == losses[6]
    assert evaluate_workdir(tmp_path / "both")["mlm_loss"] == of_both["mlm_loss"]
    formats.write(final, tmp_path / "converted", "bert_jax")
    assert {key: formats.read(tmp_path / "converted").model[key] for key in later} == later


@pytest.fixture(scope="module")
def compiler_of_users():
    """Compiles train steps as users do: otherwise, another stage may move a last bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "compiler_options", lambda devices: cheap.compiler_of_users())
        yield


@pytest.fixture(scope="module")
def finished(compiler_of_users, texts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("phases") / "run"
    pretrain(phases(texts), directory)
    return directory


def test_phases_of_one_shape_are_compiled_once(finished):
    lines = [line for line in read_metrics(finished) if "loss" in line]
    assert [line["step"] for line in lines if line.get("compile_seconds")] == [1]
    rates = [0, 0.005, *[0.01] * 4, *[5e-3] * 3]
    # 1 - sqrt(t) for thirds of the way, from 0.01 to a quarter of it.
    rates += [0.01, 0.01 * (1 - 0.75 * 3**-0.5), 0.01 * (1 - 0.75 * (2 / 3) ** 0.5)]
    np.testing.assert_allclose([line["learning_rate"] for line in lines], rates, rtol=1e-5)


def test_a_stage_is_appended_to_a_run_to_the_bit(finished, texts, tmp_path):
    """The run ends with its second phase, and gets the third."""
    first = phases(texts)
    first.train.num_steps, first.train.stages = 9, first.train.stages[:2]
    first.train.stages[0].fraction, first.train.stages[1].fraction = 2 / 3, 1 / 3
    pretrain(first, tmp_path)
    pretrain(phases(texts), tmp_path)
    runs.assert_same_bits(runs.final_state(tmp_path), runs.final_state(finished))
