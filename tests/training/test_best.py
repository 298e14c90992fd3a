"""The best evaluation and the early end of a run, which kills do not change."""

import json
import signal

import jax.numpy as jnp
import pytest

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config import validate
from bert_jax.interop import formats
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import run as pretrain
from bert_jax.training import workdir
from bert_jax.training.best import Best
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.state import TrainState
from tests.interop.small_bert import same_weights
from tests.small import small_config
from tests.small_run import after_step, compiled_once, small_run, write_documents  # noqa: F401


@pytest.mark.parametrize(
    ("scores", "best", "num_worse"),
    [
        ([], -1, 0),
        ([(10, 3.0, 8), (20, 2.0, 8)], 10, 1),
        # The first of equal scores is the best.
        ([(10, 2.0, 8), (20, 2.0, 8), (25, 1.0, 8)], 10, 2),
        ([(10, 2.0, 8), (20, 1.0, 8), (25, 2.5, 8)], 25, 0),
        # Scores of another length of sequences are not compared.
        ([(10, 9.0, 8), (20, 8.0, 8), (30, 1.0, 16), (40, 0.5, 16)], 30, 1),
    ],
)
@pytest.mark.parametrize("resumed_after", [0, 1, 2, 3])
def test_best_by_scores(scores, best, num_worse, resumed_after, tmp_path):
    params = {"w": jnp.ones(2)}
    found = Best(tmp_path, keeps=True, state={})
    for number, (step, score, length) in enumerate(scores):
        if number == resumed_after:
            found.close()
            found = Best(tmp_path, keeps=True, state=json.loads(json.dumps(found.state())))
        found.update(TrainState(jnp.asarray(step), params, ()), score, [step], length)
    assert (found.step, found.num_worse) == (best, num_worse)
    assert found.results == ([best] if scores else None)
    assert workdir.saved_steps(tmp_path / workdir.BEST)[-1:] == ([best] if scores else [])
    found.close()


def test_what_a_killed_process_left_is_removed_and_what_is_gone_is_forgotten(tmp_path):
    params = {"w": jnp.ones(2)}
    found = Best(tmp_path, keeps=True, state={})
    states = [found.state()]
    for step in (2, 4, 6):
        found.update(TrainState(jnp.asarray(step), params, ()), step)
        states.append(found.state())
    found.close()
    # Only the newest two are kept: the process that continues after step 2 has lost its best.
    found = Best(tmp_path, keeps=True, state=states[1])
    assert (found.step, found.last_step) == (-1, 2)
    assert workdir.saved_steps(tmp_path / workdir.BEST) == []
    found.update(TrainState(jnp.asarray(4), params, ()), 4.0)
    assert found.step == 4
    found.close()


def test_the_loss_has_the_weights_of_training():
    objective = WeightedTerms(make_terms(("masked_lm", "next_sentence")), (1.0, 4.0))
    assert objective.held_out_loss({"mlm_loss": 2.0, "nsp_loss": 0.5, "num_sequences": 8}) == 4.0


@pytest.mark.parametrize(("keep_best", "folder"), [(True, "best"), (False, "checkpoints")])
def test_an_old_best_is_not_read(keep_best, folder, tmp_path):
    workdir.claim(tmp_path, small_config(**{"checkpoint.keep_best": keep_best}))
    (tmp_path / "best" / "2").mkdir(parents=True)
    assert workdir.checkpoint_folder(tmp_path).name == "best"
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    assert workdir.checkpoint_folder(tmp_path).name == folder
    assert workdir.checkpoint_folder(tmp_path, 2).name == "best"


def run_config(texts, **overrides):
    values = {
        "train.num_steps": 30,
        "train.early_stopping_patience": 2,
        "eval.every_steps": 2,
        "checkpoint.every_steps": 5,
        "checkpoint.keep_best": True,
        # The loss falls and then rises.
        "schedule.peak_learning_rate": 0.1,
        "schedule.warmup_steps": 5.0,
    }
    return small_run(texts, **values | overrides)


def outcome(directory):
    """Returns the results, the evaluations and the kept best steps of a run."""
    results = files.read_json(directory / workdir.RESULTS)
    del results["train_sequences_per_second"], results["compile_seconds"]
    evaluations = [line for line in read_metrics(directory) if "eval_mlm_loss" in line]
    return results, evaluations, sorted(path.name for path in (directory / workdir.BEST).iterdir())


@pytest.mark.slow
def test_stopped_and_killed_run_takes_the_same_decisions(tmp_path, monkeypatch, capsys):
    texts = write_documents(tmp_path / "texts", 12)
    pretrain.train(run_config(texts), tmp_path / "whole")
    results, evaluations, kept = expected = outcome(tmp_path / "whole")
    steps = [line["step"] for line in evaluations]
    best_step, last_step = results["best_step"], results["step"]
    assert steps == list(range(2, last_step + 1, 2)) and last_step == best_step + 4 < 30
    assert results["stopped_early"] and kept[-1:] == [str(best_step)]
    lowest = min(evaluations, key=lambda line: line["eval_mlm_loss"] + line["eval_nsp_loss"])
    assert lowest["step"] == best_step
    assert results["mlm_loss"] == evaluations[-1]["eval_mlm_loss"]

    # A signal at the best step prevents its evaluation.
    save = Checkpointer.save

    def killed(checkpoints, step, *args):
        if step == last_step:
            raise InterruptedError
        save(checkpoints, step, *args)

    with after_step(best_step, lambda: signal.raise_signal(signal.SIGTERM)):
        assert pretrain.train(run_config(texts), tmp_path / "killed") is None
    # The process is killed between the last evaluation and its checkpoint.
    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", killed)
        with pytest.raises(InterruptedError):
            pretrain.train(run_config(texts), tmp_path / "killed")
    pretrain.train(run_config(texts), tmp_path / "killed")
    assert outcome(tmp_path / "killed") == expected
    best = formats.read(tmp_path / "killed")
    assert best.training["step"] == best_step
    assert same_weights(best.weights, formats.read(tmp_path / "whole").weights)
    assert evaluation.evaluate_workdir(tmp_path / "killed")["step"] == best_step
    assert evaluation.evaluate_workdir(tmp_path / "killed", step=last_step)["step"] == last_step

    # Another start says that the run is finished, and a larger patience continues it.
    capsys.readouterr()
    pretrain.train(run_config(texts), tmp_path / "killed")
    assert "a larger --config.train.early_stopping_patience" in capsys.readouterr().out
    longer = run_config(texts, **{"train.early_stopping_patience": 3})
    ending = pretrain.train(longer, tmp_path / "killed")
    assert ending["step"] == last_step + 2 or ending["best_step"] > best_step


def test_keys_without_evaluations_are_refused(tmp_path):
    for key in ("train.early_stopping_patience", "checkpoint.keep_best"):
        with pytest.raises(UserError, match=f"config.{key} is .* config.eval.every_steps is 0"):
            validate(small_run("sotu", **{key: 1 if "early" in key else True}))
    texts = write_documents(tmp_path / "texts", 3)
    with pytest.raises(UserError, match="keep_best, .* need held-out documents"):
        pretrain.train(run_config(texts, **{"data.heldout_fraction": 0.0}), tmp_path / "run")
