"""The best evaluation and the early end of a run, which kills do not change."""

import signal

import pytest

from bert_jax import evaluation, files, pretrain, workdir
from bert_jax.config import stage, validate
from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms
from bert_jax.training.best import Evaluations
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from tests.interop.small_bert import same_weights
from tests.small import small_config
from tests.small_run import after_step, compiled_once, small_run, write_documents  # noqa: F401


@pytest.mark.parametrize(
    ("losses", "best", "has_stalled"),
    [
        ({}, None, False),
        ({10: 3.0, 20: 2.0}, (20, 2.0), False),
        # The first of equal losses is the best.
        ({10: 2.0, 20: 2.0, 25: 3.0}, (10, 2.0), True),
        ({10: 2.0, 20: 3.0, 25: 1.5, 28: None}, (25, 1.5), False),
        # Sequences are longer after step 30, and at step 0.
        ({10: 1.0, 20: 2.0, 30: 3.0, 40: 9.0}, (40, 9.0), False),
        ({10: 1.0, 40: 9.0, 50: 9.5, 60: 9.25}, (40, 9.0), True),
        ({0: 1.0, 10: 8.0, 20: 9.0}, (10, 8.0), False),
    ],
)
def test_best_and_early_end_by_values(losses, best, has_stalled):
    config = small_config()
    config.train.num_steps = 100
    config.train.stages = tuple(
        stage(fraction=f, max_seq_length=n) for f, n in ((0.3, 8), (0.7, 16))
    )
    lines = [
        {"step": step, "eval_mlm_loss": loss, "eval_nsp_loss": 0.0} for step, loss in losses.items()
    ]
    lines.insert(0, {"step": 5, "loss": 0.5})
    objective = WeightedTerms(make_terms(("masked_lm", "next_sentence")), (1.0, 4.0))
    evaluations = Evaluations(objective, resolve_stages(config), 2, lines)
    assert (evaluations.best(), evaluations.has_stalled()) == (best, has_stalled)
    assert not Evaluations(objective, resolve_stages(config), 0, lines).has_stalled()


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
    del results["train_sequences_per_second"]
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
    # Without metrics.jsonl, the best checkpoint is evaluated again.
    (tmp_path / "killed" / "metrics.jsonl").unlink()
    ending = pretrain.train(longer, tmp_path / "killed")
    assert "has no evaluation of the steps up to" in capsys.readouterr().out
    assert ending["step"] > last_step
    again = outcome(tmp_path / "killed")[1]
    assert [line["step"] for line in again[:2]] == [best_step, last_step]
    for name in ("eval_mlm_loss", "eval_nsp_loss"):
        assert again[0][name] == pytest.approx(lowest[name], rel=1e-6)


def test_keys_without_evaluations_are_refused(tmp_path):
    for key in ("train.early_stopping_patience", "checkpoint.keep_best"):
        with pytest.raises(UserError, match=f"config.{key} is .* config.eval.every_steps is 0"):
            validate(small_run("sotu", **{key: 1 if "early" in key else True}))
    texts = write_documents(tmp_path / "texts", 3)
    with pytest.raises(UserError, match="keep_best and .* need held-out documents"):
        pretrain.train(run_config(texts, **{"data.heldout_fraction": 0.0}), tmp_path / "run")
