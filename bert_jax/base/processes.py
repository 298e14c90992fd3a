"""Worker processes that import neither the main module nor JAX."""

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any


@contextmanager
def worker_processes(
    number: int, initializer: Callable[..., None] | None = None, arguments: tuple = ()
) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes; work that has not begun when the block ends is cancelled."""
    # This process may have threads (JAX, TensorFlow), which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = _Pool(number, context, initializer=_start_worker, initargs=(initializer, arguments))
    # `submit` starts processes, which would import the main module and perhaps JAX.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield pool
    finally:
        sys.modules["__main__"] = main
        # A worker that is still starting may need files that the caller removes next.
        pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        return super().submit(_call, function, *args, **kwargs)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function in a worker."""
    try:
        return function(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        # A panic of a library in Rust cannot be sent to another process.
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker(initializer: Callable[..., None] | None, arguments: tuple) -> None:
    # Ctrl-C reaches all processes; the main process stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ends this process if the main one is killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer:
        initializer(*arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
