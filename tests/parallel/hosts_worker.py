"""A program that test_agreements.py runs as two processes with two devices each.

    python -m tests.parallel.hosts_worker --coordinator=HOST:PORT ... FILE

Writes this process's batches and the results of collective functions to FILE as JSON, and then
fails.
"""

import dataclasses
import json
import signal
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from bert_jax.base.errors import UserError
from bert_jax.config import cli
from bert_jax.parallel import multihost
from bert_jax.parallel.sharding import Layout
from bert_jax.training.preemption import PreemptionGuard


def batches(order: list[int], shape: tuple[int, int, int]) -> dict:
    """Returns this process's shards, and whether all hosts together give the global batches.

    The mesh has the devices in the given order.
    """
    from bert_jax.batches.stream import Stream, evaluation_batches
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
        Path(argv[1]).write_text(json.dumps(observed()))
        # An error on one process ends both.
        multihost.run_on_all(fails_on(1, UserError("it is wrong")))


def fails_on(process: int, error: Exception):
    def action():
        if jax.process_index() == process:
            raise error
        return jax.process_index()

    return action


def observed() -> dict:
    process_id = jax.process_index()
    seen = {
        "straight": batches([0, 1, 2, 3], (4, 1, 1)),
        "mixed": batches([0, 2, 1, 3], (2, 2, 1)),
        "shared": batches([0, 2, 1, 3], (2, 1, 2)),
        "on process zero": multihost.run_on_process_zero(lambda: {"I am": process_id}),
        "on all": multihost.run_on_all(lambda: process_id),
        "first fails": failure(
            lambda: multihost.run_on_process_zero(
                fails_on(0, OSError(28, "No space left", "/full/disk"))
            )
        ),
        "vote": int(multihost.vote(3 + process_id)),
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
