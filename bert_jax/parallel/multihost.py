"""One run in several processes: joining, agreeing, and leaving together.

All of it does nothing, and costs nothing, in a run of one process.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.parallel import launch
from bert_jax.parallel.mesh import num_data_shards

T = TypeVar("T")

# When all is done the first process still draws curves and writes the results.
FINISH_SECONDS = 300
# One that fails alone waits so long for the others to fail too: where all found the same
# mistake none should look lost.
FAIL_SECONDS = 5
# For as long as a corpus may take to prepare.
_WAIT_MILLISECONDS = 14 * 24 * 3600 * 1000

# How it shows in Python that another process is gone: in a collective, in a barrier,
# in a save.
_LOST = re.compile(
    r"Gloo|NCCL|UNAVAILABLE|heartbeat|Socket closed|Connection (reset|refused|closed)|"
    r"coordination service|unhealthy|Timed out while waiting for async_|Barrier (failed|timed out)"
)
_wait_number = itertools.count()


def join(by_hand: launch.ByHand | None) -> None:
    """Joins the other processes of the run, and silences all but the first.

    Args:
      by_hand: Where they meet; None: as the environment says.

    Raises:
      UserError: they cannot be found, in words of jax's.
    """
    # What makes CPU processes exchange numbers.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM for itself: training/preemption.py does that, and sooner.
    jax.config.update("jax_enable_preemption_service", False)
    place = {}
    if by_hand:
        place = {
            "coordinator_address": by_hand.coordinator,
            "num_processes": by_hand.num_processes,
            "process_id": by_hand.process_id,
            # Nothing is left to be found out, so nobody is asked.
            "cluster_detection_method": "deactivate",
        }
    try:
        jax.distributed.initialize(
            **place,
            initialization_timeout=launch.JOIN_SECONDS,
            heartbeat_timeout_seconds=launch.LOST_SECONDS,
            shutdown_timeout_seconds=FINISH_SECONDS,
        )
    except (RuntimeError, ValueError, OSError) as error:
        where = by_hand.coordinator if by_hand else "the place that the environment names"
        hint = "; is another program using the port?" if "RPC server" in str(error) else ""
        raise UserError(
            f"this process cannot join the others at {where}: {_first_line(error)}{hint}"
        ) from error
    launch.tell_name(_name())
    _quiet()


def leave() -> None:
    """Waits for the other processes to end as well."""
    jax.distributed.shutdown()


def fail(message: str, status: int, error: BaseException) -> NoReturn:
    """Says why this process ends, if that is news, and ends it without waiting for long."""
    if not jax.distributed.is_initialized():
        print(message, file=sys.stderr, flush=True)
        os._exit(status)
    lost = is_lost(error)
    if lost:
        message, status = f"error: {launch.LOST}", launch.LOST_STATUS
    if message:
        text = message.removeprefix("error: ")
        first = not lost and is_first()
        print(message if first else f"error: {_name()}: {text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if not lost:
        leaving = threading.Thread(target=_leave_quietly, daemon=True)
        leaving.start()
        leaving.join(FAIL_SECONDS)
    # Not sys.exit: threads that wait for a lost process would wait on.
    os._exit(status)


def is_first() -> bool:
    """Whether this is the process that prints, logs and writes."""
    return jax.process_index() == 0


def is_lost(error: BaseException | None) -> bool:
    """Whether an error came of another process being gone."""
    while error is not None:
        if isinstance(error, UserError):
            return False
        if isinstance(error, RuntimeError | TimeoutError | ValueError) and _LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def run_on_all(action: Callable[[], T]) -> T:
    """Runs `action` on every process; where it fails on one, it fails on all.

    Raises:
      UserError: it failed on another process, with what that one said; an error of this
        process's own comes as it is.
    """
    if jax.process_count() == 1:
        return action()
    result = error = None
    try:
        result = action()
    except Exception as caught:
        error = caught
    failed_P = multihost_utils.process_allgather(np.array(error is not None, np.int32))
    if failed_P.any():
        _raise(error, int(np.argmax(failed_P)))
    return result


def run_on_process_zero(action: Callable[[], T]) -> T:
    """Runs `action` on process 0 alone, however long it takes, and gives its result to all.

    Args:
      action: Its result can be written as JSON.

    Raises:
      UserError: it failed, with what process 0 said; on process 0 the error as it is.
    """
    if jax.process_count() == 1:
        return action()
    result = error = None
    if is_first():
        try:
            result = action()
        except Exception as caught:
            error = caught
    # No device is made to wait for hours.
    _wait()
    failed = multihost_utils.broadcast_one_to_all(np.array(error is not None, np.int32))
    if failed:
        _raise(error, 0)
    return json.loads(_text_of(0, json.dumps(result)))


def vote(value: int) -> jax.Array:
    """The largest of all processes' values, int32; is dispatched, not waited for."""
    sharding, largest = _voting()
    votes = np.full(jax.local_device_count(), value, np.int32)
    return largest(jax.make_array_from_process_local_data(sharding, votes))


def batch_shards(sharding: NamedSharding) -> dict[str, Any]:
    """Which parts of each global batch this process's devices take.

    Args:
      sharding: Of the batch.

    Returns:
      `num_shards`, in how many parts the batch is cut, and `shards`, the ascending
      numbers of those that lie here: not always neighbours, since a mesh follows the wires
      between the devices, and the same as another process's where devices share a part.
    """
    parts = num_data_shards(sharding.mesh)
    places = sharding.addressable_devices_indices_map((parts,))
    shards = {part for (index,) in places.values() for part in range(*index.indices(parts))}
    return {"shards": tuple(sorted(shards)), "num_shards": parts}


@functools.cache
def _voting() -> tuple[NamedSharding, Callable[[jax.Array], jax.Array]]:
    mesh = Mesh(np.array(jax.devices()), ("devices",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("devices")), jax.jit(jnp.max, out_shardings=everywhere)


def _raise(error: Exception | None, process: int) -> NoReturn:
    """Raises this process's own error, or says what that other process's is."""
    text = _text_of(process, _first_line(error) if error is not None else "")
    if error is not None:
        raise error
    raise UserError(f"process {process} failed: {text}")


def _text_of(process: int, text: str) -> str:
    """What one process says, to all."""
    is_source = jax.process_index() == process
    data = np.frombuffer(text.encode(), np.uint8)
    size = multihost_utils.broadcast_one_to_all(np.array(data.size, np.int32), is_source)
    data = data if is_source else np.zeros(int(size), np.uint8)
    return multihost_utils.broadcast_one_to_all(data, is_source).tobytes().decode()


def _wait() -> None:
    """Returns when all processes have come here."""
    from orbax.checkpoint import multihost  # Slow to load; a run of one process needs it later.

    barrier = multihost.get_barrier_sync_fn()
    barrier(key=f"bert_jax_{next(_wait_number)}", timeout_ms=_WAIT_MILLISECONDS)


def _quiet() -> None:
    """Leaves the real stdout to the first process's Python code."""
    if is_first():
        sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    else:
        sys.stdout = open(os.devnull, "w")
    # What libraries in C++ print there is no news to anyone, and may be sorted out.
    os.dup2(2, 1)


def _name() -> str:
    return f"process {jax.process_index()} of {jax.process_count()}"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _leave_quietly() -> None:
    with contextlib.suppress(Exception):
        jax.distributed.shutdown()


@contextlib.contextmanager
def joined(
    by_hand: launch.ByHand | None, ending: Callable[[BaseException], tuple[str, int]]
) -> Iterator[None]:
    """The time during which this process is one of several.

    Args:
      by_hand: As for `join`.
      ending: Of an error, what to say of it and the exit status.
    """
    try:
        join(by_hand)
        yield
        leave()
    except BaseException as error:
        fail(*ending(error), error)
