"""Reports numbers that are not finite."""

from typing import Any

from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.parallel import multihost
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.recorder import NonFiniteError


class DivergedError(UserError):
    """A step or the outputs of a model are not finite; another learning rate may help."""


def diverged(
    error: NonFiniteError,
    directory: epath.PathLike,
    batch: dict[str, Any],
    checkpointer: Checkpointer,
) -> DivergedError:
    """Writes non_finite_step_N.json and returns the error to raise.

    Args:
      batch: A JSON-able description of the rows in the step's batch.
    """
    checkpointer.wait()
    steps = checkpointer.steps()
    report = {
        "step": error.step,
        # JSON has no NaN.
        "metrics": {name: str(value) for name, value in error.metrics.items()},
        "last_good_checkpoint": steps[-1] if steps else None,
        "batch": batch,
    }
    path = epath.Path(directory) / f"non_finite_step_{error.step}.json"
    if multihost.is_first():
        files.write_json(path, report)
    last = f"the last checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint"
    return DivergedError(
        f"the loss, gradient or update of step {error.step} is not finite (loss "
        f"{error.metrics['loss']}, gradient norm {error.metrics['grad_norm']}, learning rate "
        f"{error.metrics['learning_rate']:.3g}); {last}; the batch is described in {path}; it "
        "usually helps to start in another --workdir with a lower "
        "config.schedule.peak_learning_rate or a longer warm-up"
    )
