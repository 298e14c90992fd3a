"""A pre-training run that takes seconds in the process of the tests, and text for it."""

import contextlib
from unittest import mock

import pytest

from bert_jax import config as config_lib
from bert_jax.commands.pretrain import pretrain
from bert_jax.training.recorder import Recorder
from configs import tiny

TEXT = (
    "The quick brown fox jumps over the lazy dog. It was a good day for all of them. "
    "Nobody knew what the old man of the hill had seen.\n\n"
)


def write_documents(folder, number, text=TEXT * 4):
    folder.mkdir(exist_ok=True)
    for i in range(number):
        (folder / f"{i}.txt").write_text(f"{text}Document number {i} ends here. It really does.")
    return f"{folder}/*.txt"


def small_run(data_input, config=None, **overrides):
    """Returns `config` changed to a run of one layer, one stage and six steps."""
    config = config or tiny.get_config()
    values = {
        "data.input": (data_input,),
        "data.num_processes": 1,
        "data.heldout_fraction": 0.2,
        "model.vocab_size": 200,
        "model.hidden_size": 16,
        "model.num_hidden_layers": 1,
        "model.intermediate_size": 16,
        "train.num_steps": 6,
        "train.batch_size": 4,
        "eval.batch_size": 4,
        "eval.max_sequences": 8,
        "eval.every_steps": 0,
        "log.every_steps": 1,
        "checkpoint.every_steps": 2,
    } | {key.replace("__", "."): value for key, value in overrides.items()}
    with config.unlocked():
        config.train.stages = (
            config_lib.stage(fraction=1.0, max_seq_length=16, max_predictions_per_seq=4),
        )
        config.update_from_flattened_dict(values)
    return config


@contextlib.contextmanager
def after_step(number, action):
    """Calls `action` after this step of each run in the block."""
    dispatched = Recorder.dispatched

    def with_action(recorder, step, *args, **kwargs):
        dispatched(recorder, step, *args, **kwargs)
        if step == number:
            action()

    with mock.patch.object(Recorder, "dispatched", with_action):
        yield


def interrupt():
    raise KeyboardInterrupt


def train_with_interruption(config, directory, step):
    """Trains; the run is interrupted after a step and started again."""

    with after_step(step, interrupt), pytest.raises(KeyboardInterrupt):
        pretrain(config, directory)
    pretrain(config, directory)
