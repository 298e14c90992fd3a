"""A program that test_agreements.py runs as two processes with two devices each.

    python -m tests.parallel.hosts_worker --coordinator=HOST:PORT ... FILE

Writes this process's batches and the results of collective functions to FILE as JSON, and then
fails.
"""

import dataclasses
import json
import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.base.errors import UserError
from bert_jax.config import cli
from bert_jax.parallel import multihost
from bert_jax.parallel.sharding import Layout
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.loop import PreemptionGuard
from bert_jax.training.state import TrainState


def batches(order: list[int], shape: tuple[int, int, int]) -> dict:
    """Returns this process's shards, and whether all hosts together give the global batches.

    The mesh has the devices in the given order.
    """
    from bert_jax.batches.evaluation_batches import evaluation_batches
    from bert_jax.batches.stream import Stream
    from tests.batches.small_stream import SPEC, STORE, TOKENIZER

    devices = np.array(jax.devices())[order].reshape(shape)
    mesh = Mesh(devices, ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)
    layout = Layout.create(mesh, "tp" if mesh.shape["model"] > 1 else "dp")
    ours = multihost.batch_shards(layout.batch)
    spec = dataclasses.replace(SPEC, seed=5)

    def made(**shards):
        yield from Stream(STORE, TOKENIZER, SPEC, **shards).batches(0, 5)
        yield from evaluation_batches(STORE, TOKENIZER, spec, 20, **shards)

    equal = True
    for part, all_rows in zip(made(**ours), made(), strict=True):
        put = layout.put_batch(part)
        for name, rows in all_rows.items():
            gathered = multihost_utils.process_allgather(put[name], tiled=True)
            equal &= np.array_equal(gathered, rows)
    return {"shards": ours["shards"], "num_shards": ours["num_shards"], "equal": bool(equal)}


def failure(action) -> str:
    try:
        action()
    except (UserError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(argv: list[str]) -> None:
    with cli.joined_hosts():
        file = Path(argv[1])
        file.write_text(json.dumps(observed(file.parent)))
        # An error on one process ends both.
        with multihost.agreed():
            fails_on(1, UserError("it is wrong"))()


def fails_on(process: int, error: Exception):
    def action():
        if jax.process_index() == process:
            raise error
        return jax.process_index()

    return action


def restored(directory: Path) -> dict:
    """Saves two checkpoints, damages the newer one, and restores on another mesh."""
    rows = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)

    def state(order: list[int], step: int) -> TrainState:
        mesh = Mesh(np.array(jax.devices())[order], ("fsdp",), axis_types=(AxisType.Auto,))
        everywhere, by_row = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("fsdp",)))
        params = {"w": jax.device_put(rows + step, by_row)}
        return TrainState(jax.device_put(np.int32(step), everywhere), params, {})

    checkpointer = Checkpointer(directory, keep=2)
    for step in (1, 2):
        checkpointer.save(step, state([0, 1, 2, 3], step), {"step": step})
    checkpointer.wait()
    if multihost.is_first():
        # Only one process reads the half that is lost.
        file = next((directory / "2").glob("state/ocdbt.process_1/d/*"))
        os.truncate(file, file.stat().st_size // 2)
    found, resume = checkpointer.restore_newest(state([2, 0, 3, 1], 0))
    checkpointer.close()
    same = multihost_utils.process_allgather(found.params["w"], tiled=True) == rows + 1
    return {"step": int(found.step), "resume": resume, "equal": bool(same.all())}


def slowly(value):
    """Returns a value after the others have asked for it several times."""
    time.sleep(1)
    return value


def observed(directory: Path) -> dict:
    process_id = jax.process_index()
    multihost._WAIT_MILLISECONDS = 200
    seen = {
        "straight": batches([0, 1, 2, 3], (4, 1, 1)),
        "mixed": batches([0, 2, 1, 3], (2, 2, 1)),
        "shared": batches([0, 2, 1, 3], (2, 1, 2)),
        "on process zero": multihost.run_on_process_zero(lambda: slowly({"I am": process_id})),
        "first fails": failure(
            lambda: multihost.run_on_process_zero(
                fails_on(0, OSError(28, "No space left", "/full/disk"))
            )
        ),
        "vote": int(multihost.vote(3 + process_id)),
        "restored": restored(directory / "checkpoints"),
    }
    with PreemptionGuard() as guard:
        polls = [guard.poll(), guard.poll()]
        if process_id == 1:
            signal.raise_signal(signal.SIGTERM)
        noted = guard.requested
        polls += [guard.poll(), guard.poll(), guard.poll()]
        seen["guard"] = {"polls": polls, "noted": noted, "name": guard.signal_name}
    return seen


if __name__ == "__main__":
    cli.define_host_flags()
    cli.run(main, words=True)
