"""A DistilBERT is distilled from a small BERT, stopped, resumed and evaluated."""

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop import formats
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from configs import distilbert
from tests import runs
from tests.small_run import small_run, train_with_interruption


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, finished):
    """Returns a BERT of two layers: that of the finished run, and one of other weights."""
    directory = tmp_path_factory.mktemp("teacher") / "model"
    pretrained, rng = formats.read(finished), np.random.default_rng(0)
    pretrained.model["num_hidden_layers"] = 2
    for name, value in list(pretrained.weights.items()):
        if "layer_0" in name:
            noise = 0.02 * rng.standard_normal(value.shape).astype(np.float32)
            pretrained.weights[name.replace("layer_0", "layer_1")] = value + noise
    formats.write(pretrained, directory, "bert_jax")
    return directory


@pytest.fixture(scope="module")
def student(tmp_path_factory, texts, teacher):
    """Returns a finished run of a student that began with the teacher's second layer."""
    directory = tmp_path_factory.mktemp("student") / "run"
    pretrain(distilled(texts, teacher, model__vocab_size=8192), directory)
    return directory


def distilled(texts, teacher, **overrides):
    """Returns the config of a student of one layer."""
    values = {
        "objective.teacher": str(teacher),
        "objective.teacher_layers": "1",
        "schedule.peak_learning_rate": 2e-5,
    }
    return small_run(texts, distilbert.get_config("tiny"), **values | overrides)


def test_student_begins_with_the_teachers_layers(student, teacher):
    theirs, last = formats.read(teacher).weights, formats.read(student).weights
    first = formats.read(student, step=2).weights
    assert not any("pooler" in name or "token_type" in name for name in last)

    def distance(ours, name):
        return np.abs(first[ours] - theirs[name]).max()

    # Two warm-up steps change no weight by more than this.
    moved = 1e-4
    layer = "bert/encoder/layer_{}/output/kernel"
    assert 0 < distance(layer.format(0), layer.format(1)) < moved
    assert distance(layer.format(0), layer.format(0)) > moved
    assert 0 < distance("mlm/output_bias", "mlm/output_bias") < moved
    assert distance("mlm/transform/kernel", "mlm/transform/kernel") > moved


def test_the_teacher_determines_the_vocabulary(student, teacher, texts, tmp_path):
    """The recipe proposes 8,192 tokens, and the texts would give another vocabulary."""
    stored = workdir.load_config(student)
    vocab = str(student / "initial_vocabulary")
    assert (stored.model.vocab_size, stored.data.vocab) == (200, vocab)
    ours, theirs = (workdir.load_vocabulary(path)[0].fingerprint for path in (student, teacher))
    assert ours == theirs
    config = distilled(texts, teacher, model__vocab_size=180)
    source = ConfigSource("x.py", config, frozenset({"model.vocab_size"}))
    with pytest.raises(UserError, match="is 180, but the teacher .* has 200: set --config.model.v"):
        pretrain(config, tmp_path, source)


def test_reports_the_three_losses_and_the_teachers_score(student):
    line = read_metrics(student)[0]
    parts = 5 * line["soft_targets_loss"] + 2 * line["mlm_loss"] + line["hidden_cosine_loss"]
    assert line["loss"] == pytest.approx(parts, rel=1e-5)
    results = evaluate_workdir(student)
    assert results["teacher_mlm_loss"] > 1 and 0 <= results["soft_targets_accuracy"] <= 1


@pytest.mark.slow
def test_interrupted_run_is_bit_identical(student, teacher, texts, tmp_path):
    train_with_interruption(distilled(texts, teacher), tmp_path, 5)
    with pytest.raises(UserError, match=r"its config\.objective\.teacher is"):
        pretrain(distilled(texts, student), tmp_path)
    runs.assert_same_bits(runs.final_state(tmp_path), runs.final_state(student))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"objective__teacher": ""}, "needs a teacher: set --config.objective.teacher=DIR to a"),
        ({"objective__teacher": "/nowhere"}, "/nowhere does not exist"),
        ({"model__hidden_size": 8}, "leave hidden_cosine out of config.objective.terms"),
        ({"objective__teacher_layers": "2"}, "it must name .* layers from 0 to 1"),
        ({"model__intermediate_size": 24}, "a teacher with the student's widths"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(teacher, texts, tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        pretrain(distilled(texts, teacher, **overrides), tmp_path)
