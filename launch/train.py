"""Runs one process of a training run; its exit status shows whether to start it again.

    python launch/train.py WORKDIR --config=configs/large.py [more flags of bert_jax.main]

bert_jax.main exits with 0 when it is finished, but also after SIGTERM. This exits with 75 then.
launch/README.md lists the statuses.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

from etils import epath

import bert_jax.base.files  # noqa: F401  Makes epath read gs:// without TensorFlow.

# EX_TEMPFAIL of sysexits.h.
AGAIN = 75


def main(arguments: Sequence[str]) -> int:
    directory, *flags = arguments
    command = [sys.executable, "-m", "bert_jax.main", f"--workdir={directory}", *flags]
    child = subprocess.Popen(command)
    # Containers and Slurm send SIGTERM to this process only; Ctrl-C reaches both.
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    signal.signal(signal.SIGINT, lambda *_: None)
    status = child.wait()
    if status == 0:
        return 0 if finished(directory) else AGAIN
    if status == -signal.SIGTERM:
        # The signal came before the training began.
        return AGAIN
    return status if status > 0 else 128 - status


def finished(directory: epath.PathLike) -> bool:
    """Returns whether results.json has the results of the last step."""
    path = epath.Path(directory)
    try:
        results = json.loads((path / "results.json").read_text())
        step = results["step"]
        config = json.loads((path / "config.json").read_text())
        last_step = config["train"]["num_steps"]
        return step >= last_step
    except (OSError, ValueError, KeyError, TypeError):
        # A file is absent, or was half written when the machine was lost.
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
