"""Trains, on one host of perhaps many, and tells by its exit status how that ended.

    python launch/train.py WORKDIR --config=configs/large.py [more flags of bert_jax.main]

    0     the run is finished
    75    not yet: it was asked to stop (SIGTERM) and saved, or lost a host; start it again
    1, 2  a mistake, which was told; starting it again would not help
    else  it died; start it again

Every launcher runs this. bert_jax.main itself ends with 0 also when it was asked to stop.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence

from etils import epath

import bert_jax.storage  # noqa: F401  Makes epath read gs:// without TensorFlow.

# sysexits.h: a temporary failure, to be tried again.
AGAIN = 75


def main(arguments: Sequence[str]) -> int:
    directory, *flags = arguments
    asked: list[int] = []
    child = None

    def ask(number, _):
        asked.append(number)
        if child is not None:
            child.send_signal(number)

    # This is what a container and Slurm send it to. Ctrl-C reaches the child by itself.
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, lambda *_: None)
    command = [sys.executable, "-m", "bert_jax.main", f"--workdir={directory}", *flags]
    child = subprocess.Popen(command)
    if asked:
        child.send_signal(signal.SIGTERM)
    status = child.wait()
    if status == 0:
        return 0 if finished(directory) else AGAIN
    if status == -signal.SIGTERM and asked:
        # It had not begun, so there was nothing to save.
        return AGAIN
    return status if status > 0 else 128 - status


def finished(directory: epath.PathLike) -> bool:
    """Whether the results in a work directory are of the last step that its config asks for.

    A run that was made longer since (config.train.num_steps) has older ones.
    """
    path = epath.Path(directory)
    try:
        results = json.loads((path / "results.json").read_text())
        config = json.loads((path / "config.json").read_text())
        return results["step"] >= config["train"]["num_steps"]
    except (OSError, ValueError, KeyError, TypeError):
        # Absent, or half written when the machine went.
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
