"""What makes the small runs of the tests cheap, in the process of a test or a forked one."""

import contextlib
import dataclasses
import os
from unittest import mock

from bert_jax.reports import curves, page
from bert_jax.training import trainer as trainer_lib
from bert_jax.training.trainer import Trainer

# Each keeps its compiled programs in memory.
_MAX_TRAINERS = 8
_STEPS = ("compiled_train_step", "_compiled_eval_step", "_compiled_init")
_create = Trainer.create


def compiler_of_users() -> dict[str, bool]:
    """Returns the options of jax.jit that undo conftest.py's flag, which moves last bits.

    With the flag, a value that two operations need may be computed twice, with other rounding.
    """
    is_flag_set = "xla_cpu_use_fusion_emitters" in os.environ["XLA_FLAGS"]
    return {"xla_cpu_use_fusion_emitters": True} if is_flag_set else {}


@contextlib.contextmanager
def figures(drawn: bool):
    """Reports in this context have real figures, or empty ones: to draw takes half of a run."""
    real = {"write_curves": curves.write_curves, "panel_svg": curves.panel_svg}
    empty = {
        "write_curves": lambda lines, path, panels: path.write_bytes(b"\x89PNG\r\n\x1a\n"),
        "panel_svg": lambda panel, runs: "<svg></svg>",
    }
    with mock.patch.multiple(page, **(real if drawn else empty)):
        yield


@contextlib.contextmanager
def unsynced_files():
    """Files in this context need not reach the disk: no test ends the machine."""
    with mock.patch.object(os, "fsync"):
        yield


@contextlib.contextmanager
def shared_steps():
    """Equal trainers in this context share their steps, which are traced and compiled once."""
    trainers = {}

    def create(config, *args, **kwargs):
        made = _create(config, *args, **kwargs)
        # A test may replace these.
        functions = trainer_lib.make_train_step, trainer_lib.compiler_options
        options = str(config.optimizer), made.seed, made.accumulation_steps, functions
        # Rates of layers follow from the config.
        options += (str(config),) if kwargs.get("scaling") else ()
        # The options of some objectives are dicts.
        objective = made.objective
        objective = repr(objective) if dataclasses.is_dataclass(objective) else objective
        key = made.model, objective, made.layout, tuple(made.stages), options
        while len(trainers) >= _MAX_TRAINERS:
            trainers.pop(next(iter(trainers)))
        equal = trainers.setdefault(key, made)
        vars(made).update({name: getattr(equal, name) for name in _STEPS})
        return made

    with mock.patch.object(Trainer, "create", create):
        yield
