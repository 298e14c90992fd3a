"""Connects the processes of a run, shares values between them, and ends them together.

With one process, no function communicates.
"""

import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.base.errors import UserError
from bert_jax.base.files import first_line
from bert_jax.parallel.mesh import num_data_shards

T = TypeVar("T")

# The runtime ends all other processes if one sends nothing for this long. If a process dies, its
# connections close, which is noticed within seconds; this limit is for machines and networks that
# fail.
HEARTBEAT_SECONDS = 50
# All processes must start within this time.
JOIN_SECONDS = 300
# A process that fails waits this long for the others, which may have failed the same way.
_LEAVE_SECONDS = 5
# Others ask this often whether process 0 has ended its work, which may take hours.
_WAIT_MILLISECONDS = 60_000

_wait_number = itertools.count()
# JAX sets TPU_SKIP_MDS_QUERY at its import if this machine has no TPU. If libtpu is installed for
# compile_check, it prints errors when JAX looks for devices, unless these variables are set.
if "TPU_SKIP_MDS_QUERY" in os.environ:
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")


def is_launched_by_cluster() -> bool:
    """Returns whether Slurm, Cloud TPU or GKE started this process as one of several.

    If so, `jax.distributed.initialize()` works without arguments.
    """
    if "SLURM_STEP_NODELIST" in os.environ:
        return int(os.environ.get("SLURM_NTASKS", 1)) > 1
    # JAX sets this when it finds TPU chips and libtpu.
    if "tpu" not in (jax.config.jax_platforms or ""):
        return False
    names = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if names:
        slices = int(os.environ.get("MEGASCALE_NUM_SLICES") or 1)
        return len(names.split(",")) * slices > 1
    return "TPU_SKIP_MDS_QUERY" not in os.environ


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the other processes of the run; only process 0 prints to stdout afterwards.

    All arguments are None if the cluster provides them. If some processes are missing after
    JOIN_SECONDS, the program ends with a sentence.
    """
    # JAX's own service would catch SIGTERM before PreemptionGuard does.
    jax.config.update("jax_enable_preemption_service", False)
    # JAX itself would abort the process with a trace of its C++ functions.
    giving_up = threading.Timer(JOIN_SECONDS, _give_up)
    giving_up.daemon = True
    giving_up.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if coordinator else None,
            initialization_timeout=2 * JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    finally:
        giving_up.cancel()
    if not is_first():
        sys.stdout = open(os.devnull, "w")


def _give_up() -> NoReturn:
    print(
        f"error: not all processes of the run joined within {JOIN_SECONDS} s: start as many as "
        "--num_processes says, and give all the same --num_processes and --coordinator",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def check_equal(values: Any) -> None:
    """Refuses to go on if the processes were started with different values, such as flags.

    A collective function could give a wrong result, or not end.
    """
    own = np.array(zlib.crc32(json.dumps(values).encode()), np.uint32)
    if (multihost_utils.process_allgather(own) != own).any():
        raise UserError(
            "the processes of the run have different flags or versions of bert_jax: start all with "
            "the same command"
        )


def leave_failed(status: int) -> NoReturn:
    """Ends this process after an error, whether or not the others have failed too."""
    sys.stdout.flush()
    # JAX's exit handler would wait minutes for all other processes to end.
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_SECONDS)
    os._exit(status)


def is_first() -> bool:
    """Returns whether this is process 0, which prints, logs and writes."""
    return jax.process_index() == 0


@contextlib.contextmanager
def agreed() -> Iterator[None]:
    """Ends the `with` block with an error on every process if it fails on one.

    The processes compare at its end, so the block must not communicate.
    """
    if jax.process_count() == 1:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as found:
        error = found
    failed_P = multihost_utils.process_allgather(np.array(error is not None, np.int32))
    if failed_P.any():
        _raise(error, int(np.argmax(failed_P)))


def run_on_process_zero(action: Callable[..., T], *args: Any) -> T:
    """Calls `action(*args)` on process 0 and returns its result on every process.

    The action may take hours. Its result must be a value that JSON can hold.
    """
    if jax.process_count() == 1:
        return action(*args)
    result, error = None, None
    if is_first():
        try:
            result = action(*args)
        except Exception as found:
            error = found
    from orbax.checkpoint import multihost  # Slow to load, and rarely needed.

    # A collective would time out while process 0 is busy.
    runtime, key = multihost.get_jax_distributed_client(), f"bert_jax_{next(_wait_number)}"
    if is_first():
        runtime.key_value_set(key, "done")
    while not is_first():
        try:
            runtime.blocking_key_value_get(key, _WAIT_MILLISECONDS)
            break
        except jax.errors.JaxRuntimeError as deadline:
            if "DEADLINE_EXCEEDED" not in str(deadline):
                raise
    failed = multihost_utils.broadcast_one_to_all(np.array(error is not None, np.int32))
    if failed:
        _raise(error, 0)
    return json.loads(_text_of(0, json.dumps(result)))


def vote(value: int) -> jax.Array:
    """Returns the largest `value` of all processes, int32, without waiting for the result."""
    sharding, largest = _voting()
    votes = np.full(jax.local_device_count(), value, np.int32)
    return largest(jax.make_array_from_process_local_data(sharding, votes))


def batch_shards(sharding: NamedSharding) -> dict[str, Any]:
    """Finds the shards of each global batch that this process's devices need.

    Returns:
      `num_shards`, the number of shards of a batch, and `shards`, the ascending numbers of
      this process's shards. They need not be contiguous, because a mesh follows the wiring of
      the devices. Two processes may need the same shard.
    """
    parts = num_data_shards(sharding.mesh)
    indices = sharding.addressable_devices_indices_map((parts,))
    shards = {part for (index,) in indices.values() for part in range(*index.indices(parts))}
    return {"shards": tuple(sorted(shards)), "num_shards": parts}


@functools.cache
def _voting() -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    mesh = Mesh(np.array(jax.devices()), ("devices",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("devices")), jax.jit(jnp.max, out_shardings=everywhere)


def _raise(error: Exception | None, process: int) -> NoReturn:
    """Raises `error`, or the first line of the error of another process."""
    text = _text_of(process, first_line(error) if error is not None else "")
    if error is not None:
        raise error
    raise UserError(f"process {process} failed: {text}")


def _text_of(process: int, text: str) -> str:
    """Sends a process's text to every process."""
    is_source = jax.process_index() == process
    data = np.frombuffer(text.encode(), np.uint8)
    size = multihost_utils.broadcast_one_to_all(np.array(data.size, np.int32), is_source)
    data = data if is_source else np.zeros(int(size), np.uint8)
    return multihost_utils.broadcast_one_to_all(data, is_source).tobytes().decode()
