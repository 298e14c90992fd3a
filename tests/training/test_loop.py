"""Lines of metrics, what counts as training time, and signals to the process."""

import signal
import threading
import time

import pytest

from bert_jax import config as config_lib
from bert_jax.commands.finetune import finetune
from bert_jax.commands.pretrain import pretrain
from bert_jax.training import trainer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.loop import PreemptionGuard, steps_between_lines
from bert_jax.training.metrics import read_metrics
from tests.finetuning import small
from tests.small_run import after_step, small_run

SECONDS = 1.0


@pytest.fixture
def slow(monkeypatch):
    """Adds SECONDS to each compilation of a train step."""
    make_train_step = trainer.make_train_step

    def make_slow_step(*args, **kwargs):
        train_step = make_train_step(*args, **kwargs)

        def traced(*arguments):
            time.sleep(SECONDS)
            return train_step(*arguments)

        return traced

    monkeypatch.setattr(trainer, "make_train_step", make_slow_step)


def check(directory, results, line_sequences, num_compiled):
    lines = [line for line in read_metrics(directory) if "loss" in line]
    # The first step of a program is not timed.
    rates = [rate for line in lines if (rate := line["sequences_per_second"])]
    assert min(rates) > line_sequences / SECONDS, "no step took the time of a delay"
    assert results["train_sequences_per_second"] > line_sequences / SECONDS
    compile_seconds = sum(line["compile_seconds"] for line in lines)
    assert results["compile_seconds"] == pytest.approx(compile_seconds)
    assert compile_seconds > num_compiled * SECONDS


@pytest.mark.parametrize(
    ("every_steps", "num_steps", "expected"),
    [(0, 10, 1), (0, 39, 1), (0, 40, 2), (0, 999, 49), (0, 1_000_000, 50), (7, 10, 7)],
)
def test_steps_between_lines(every_steps, num_steps, expected):
    """Without a value of the user, every run of 20 steps or more has at least 20 lines."""
    config = config_lib.default_config()
    config.log.every_steps = every_steps
    assert steps_between_lines(config, num_steps) == expected


@pytest.mark.slow
def test_of_pretraining_with_two_stages(texts, tmp_path, slow):
    config = small_run(texts, train__num_steps=12)
    with config.unlocked():
        config.train.stages = tuple(
            config_lib.stage(fraction=0.5, max_seq_length=length) for length in (16, 24)
        )
    check(tmp_path, pretrain(config, tmp_path), line_sequences=4, num_compiled=2)


@pytest.mark.slow
def test_of_fine_tuning_with_batches_of_two_lengths(tmp_path, slow):
    small.write_bert(tmp_path / "bert")
    small.write_rows(tmp_path / "data")
    values = {"train.num_epochs": 1.0, "data.length_multiple": 8}
    config = small.config(tmp_path / "bert", tmp_path / "data", **values)
    run = tmp_path / "run"
    check(run, finetune(config, run), line_sequences=5 * 8, num_compiled=2)


@pytest.mark.slow
def test_each_evaluation_is_made_once_in_a_run_that_is_stopped_and_killed(
    texts, tmp_path, monkeypatch
):
    values = {"train.num_steps": 12, "eval.every_steps": 2, "checkpoint.every_steps": 5}
    config = small_run(texts, **values)

    def evaluations(directory):
        return [line for line in read_metrics(directory) if "eval_mlm_loss" in line]

    pretrain(config, tmp_path / "whole")
    # The signal comes before the evaluation of its step.
    with after_step(6, lambda: signal.raise_signal(signal.SIGTERM)):
        assert pretrain(config, tmp_path / "killed") is None
    # The process is killed between the last evaluation and its checkpoint.
    save = Checkpointer.save

    def killed(checkpoints, step, *args):
        if step == 12:
            raise InterruptedError
        save(checkpoints, step, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", killed)
        with pytest.raises(InterruptedError):
            pretrain(config, tmp_path / "killed")
    pretrain(config, tmp_path / "killed")
    found = evaluations(tmp_path / "killed")
    assert [line["step"] for line in found] == [2, 4, 6, 8, 10, 12]
    assert found == evaluations(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_a_stop_and_handlers_are_restored(number):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with PreemptionGuard() as guard:
        assert not guard.poll() and guard.signal_name == ""
        signal.raise_signal(number)
        assert guard.poll() and guard.signal_name == number.name
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_ctrl_c_ends_the_process_but_a_second_sigterm_does_not():
    with PreemptionGuard():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_another_thread_trains_without_handlers():
    noted = []

    def work():
        with PreemptionGuard() as guard:
            noted.append(guard.requested)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert noted == [False] and signal.getsignal(signal.SIGTERM) is before
