"""Checkpoints: atomic, asynchronous, and verified before they are restored."""

import functools
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Callable
from typing import Any

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import is_on_host
from bert_jax.training.state import TrainState

# The first words of errors of reads and writes that orbax abandons after another one failed.
_NOISE = ("Event loop is closed", "Encountered error while reading array")
# The host hashes this many values at a time, so that they stay in the processor's cache.
_BLOCK = 1 << 16
_log = logging.getLogger(__name__)


class _Damage(Exception):
    """A checkpoint cannot be restored as it was saved; the message says why, as a clause."""


class Checkpointer:
    """Saves and restores `TrainState`s with the position in the data, by step.

    orbax commits a step's folder by renaming it or, in object storage, by a marker file. A killed
    save therefore leaves no folder that appears complete. orbax detects damage of its index files
    but not of the arrays, so each checkpoint has an item `checksums`, with which a restore compares
    the arrays.

    Args:
      directory: WORKDIR/checkpoints.
      keep: The number of newest checkpoints to keep.
      keep_every_steps: Also keep checkpoints whose step is a multiple of this; 0 for none.
      read_only: If True, nothing is created, moved or deleted.
    """

    def __init__(
        self,
        directory: epath.PathLike,
        *,
        keep: int = 1,
        keep_every_steps: int = 0,
        read_only: bool = False,
    ):
        _hush_orbax()
        if not read_only:
            files.check_no_pattern(directory)
        self._directory = epath.Path(files.checked_path(directory, "the checkpoints' directory"))
        if not files.is_remote(directory):
            # orbax refuses a relative path, at the first save.
            self._directory = self._directory.absolute()
        self._read_only = read_only
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep,
            keep_period=keep_every_steps or None,
            read_only=read_only,
            create=not read_only,
            cleanup_tmp_directories=not read_only,
        )
        self._manager = ocp.CheckpointManager(self._directory, options=options)

    def save(self, step: int, state: TrainState, resume: dict[str, Any]) -> None:
        """Starts saving; training continues once the arrays are copied to the host.

        Args:
          step: Steps taken so far; the folder's name.
          state: The state to save.
          resume: JSON-able values to continue from, such as the position in the data.

        Raises:
          UserError: This or the previous save could not be written (a full disk).
        """
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            resume=ocp.args.JsonSave(resume),
            checksums=ocp.args.JsonSave(_checksums(state, resume)),
        )
        self.wait()
        self._writing(lambda: self._manager.save(step, args=args, force=True))

    def wait(self) -> None:
        """Blocks until all saves are complete; raises like `save`."""
        self._writing(self._manager.wait_until_finished)

    def close(self) -> None:
        self._writing(self._manager.close)

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, oldest first."""
        self._manager.reload()
        return sorted(self._manager.all_steps())

    def restore_newest(
        self, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Restores the newest undamaged checkpoint; None if nothing was saved.

        Args:
          abstract_state: The shapes, dtypes and shardings to restore; the mesh may differ from
            the mesh of the run that wrote the checkpoint.

        Raises:
          UserError: No checkpoint can be restored; all are damaged, or the shapes differ.
        """
        restored = self._newest(ocp.args.StandardRestore(abstract_state))
        return restored and restored[1:]

    def restore_params(
        self, abstract_params: Any, step: int | None = None
    ) -> tuple[int, Any] | None:
        """Restores the parameters alone, without reading the optimizer's state.

        Args:
          abstract_params: Shapes, dtypes and shardings; leaves without a sharding become numpy
            arrays.
          step: The step to restore; None for the newest undamaged checkpoint.

        Returns:
          The checkpoint's step and its parameters; None if nothing was saved.

        Raises:
          UserError: The step does not exist, it or every checkpoint is damaged, or the shapes
            differ.
        """

        def restore_args(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
            if leaf.sharding is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape)

        args = ocp.args.PyTreeRestore(
            item={"params": abstract_params},
            restore_args={"params": jax.tree.map(restore_args, abstract_params)},
            partial_restore=True,
        )
        restored = self._newest(args) if step is None else (step, *self._at(step, args))
        return restored and (restored[0], restored[1]["params"])

    def _newest(self, args: ocp.args.CheckpointArgs) -> tuple[int, Any, dict[str, Any]] | None:
        """Restores the step, state and `resume` of the newest undamaged checkpoint.

        Newer checkpoints, which are damaged, are moved away.
        """
        damaged: list[tuple[int, str]] = []
        for step in reversed(multihost.run_on_process_zero(self.steps)):
            try:
                restored = self._restore(step, args)
            except _Damage as error:
                damaged.append((step, str(error)))
                continue
            multihost.run_on_process_zero(self._set_aside, damaged)
            self._manager.reload()
            return step, *restored
        if damaged:
            # Damaged checkpoints are not moved: with an empty folder, the next start would begin
            # at step 0.
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (the newest: "
                f"{damaged[0][1]}); start again in another work directory"
            )
        return None

    def _at(self, step: int, args: ocp.args.CheckpointArgs) -> tuple[Any, dict[str, Any]]:
        steps = multihost.run_on_process_zero(self.steps)
        try:
            if step not in steps:
                raise _Damage("it does not exist")
            return self._restore(step, args)
        except _Damage as error:
            others = ", ".join(str(other) for other in steps if other != step) or "none"
            raise UserError(
                f"{self._directory} has no complete checkpoint of step {step} ({error}); "
                f"the other steps: {others}"
            ) from error

    def _restore(self, step: int, args: ocp.args.CheckpointArgs) -> tuple[Any, dict[str, Any]]:
        """Restores a checkpoint's state and `resume`; raises _Damage if they are not as saved."""
        folder = self._directory / str(step)
        # The manager's `restore` ends with a barrier, which would wait for a process that fails.
        handler = ocp.CompositeCheckpointHandler()

        def read() -> tuple[dict[str, int], Any, dict[str, Any]]:
            items = ocp.args.Composite(checksums=ocp.args.JsonRestore())
            saved = handler.restore(folder, args=items)["checksums"]
            if missing := [name for name in _by_name(args.item) if name not in saved]:
                raise _Damage(f"it has no {missing[0]}")
            items = ocp.args.Composite(state=args, resume=ocp.args.JsonRestore())
            restored = handler.restore(folder, args=items)
            return saved, restored["state"], restored["resume"]

        try:
            with multihost.agreed():
                saved, state, resume = read()
        except (jax.errors.JaxRuntimeError, MemoryError):
            raise
        except Exception as error:
            raise _Damage(_reason(error)) from None
        for name, checksum in _checksums(state, resume).items():
            if checksum != saved.get(name):
                raise _Damage(f"{name} has changed since it was saved")
        return state, resume

    def _set_aside(self, damaged: list[tuple[int, str]]) -> None:
        """Moves these steps away, because they will be saved again under their names."""
        for step, problem in damaged:
            folder, kept = self._directory / str(step), ""
            if not self._read_only:
                moved = self._directory.parent / "damaged_checkpoints" / str(step)
                files.move(folder, moved)
                kept = f"; it was moved to {moved}"
            _log.warning(
                "checkpoint %s is damaged (%s) and is skipped; the previous one is used%s",
                folder,
                problem,
                kept,
            )

    def _writing(self, action: Callable[[], Any]) -> None:
        """Runs an action of orbax; raises UserError for a full disk or a failed request."""
        try:
            action()
        except Exception as error:
            problem = _write_problem(error)
            if not problem:
                raise
            last = ""
            if not files.is_remote(self._directory):
                steps = self.steps()
                last = f"the last good one is of step {steps[-1]}; " if steps else "there is none; "
            raise UserError(
                f"a checkpoint could not be written to {self._directory}: {problem}; {last}correct "
                "this and run the same command again"
            ) from error


@functools.cache
def _hush_orbax() -> None:
    """Silences orbax's log unless the log level is INFO.

    Errors in its threads (a full disk, a damaged file) are raised again in the calling thread.
    orbax, asyncio and tensorstore would also log them, hundreds of times.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        is_verbose = absl.logging.get_verbosity() > absl.logging.WARNING
        return is_verbose or "/orbax/" not in record.pathname

    absl.logging.get_absl_logger().addFilter(is_wanted)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def show_others(unraisable: Any) -> None:
        if not str(unraisable.exc_value).startswith(_NOISE):
            show(unraisable)

    sys.unraisablehook = show_others


def _checksums(state: Any, resume: Any) -> dict[str, int]:
    """Computes a checksum for each array of a state, by its name, and one for `resume`."""
    # One after another: on CPU, programs with collectives that run at the same time can deadlock.
    sums = {name: _checksum(leaf) for name, leaf in _by_name(state).items()}
    return sums | {"resume": zlib.crc32(json.dumps(resume).encode())}


def _by_name(state: Any) -> dict[str, Any]:
    """Returns the leaves of a state by their path and shape, `params/nsp/dense/bias (2,)`."""
    return {
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {leaf.shape}": leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def _checksum(array: jax.Array | np.ndarray) -> int:
    """Computes a checksum of an array's bits and their positions; equal on all meshes."""
    # On the host numpy is as fast, and needs no compilation for each shape.
    if not is_on_host(array):
        return int(_checksum_on_devices(array))
    values, total = np.asarray(array).reshape(-1), 0
    for first in range(0, values.size, _BLOCK):
        block = values[first : first + _BLOCK]
        total += int(_sum_hashes(block, np.arange(first, first + block.size, dtype=np.uint32)))
    return total % 2**32


@jax.jit
def _checksum_on_devices(array: jax.Array) -> jax.Array:
    position = jnp.uint32(0)
    for axis, size in enumerate(array.shape):
        position = position * size + jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
    return _sum_hashes(array, position)


def _sum_hashes(array: jax.Array, position: jax.Array) -> jax.Array:
    """Hashes the bits of each value with its position; returns the sum, uint32."""
    bits = array.view(f"uint{8 * array.itemsize}").astype("uint32")
    # The finalizer of MurmurHash3 is a bijection, so a change of one value always shows. A sum of
    # integers does not depend on the order, which differs between meshes.
    hashed = bits ^ position * np.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = (hashed ^ hashed >> shift) * np.uint32(factor)
    return (hashed ^ hashed >> 16).sum(dtype="uint32")


def _reason(error: BaseException) -> str:
    """Returns the first sentence of the error that caused this one."""
    while error.__cause__:
        error = error.__cause__
    # orbax goes on with advice about its options.
    return files.first_line(error).partition(". ")[0]


def _write_problem(error: BaseException | None) -> str:
    """Returns why a file could not be written; "" for other errors."""
    if problem := files.storage_problem(error):
        return problem
    while error is not None:
        # tensorstore reports a full disk as a ValueError.
        if found := re.search(r"os_error_code='(\d+)'", str(error)):
            return os.strerror(int(found[1]))
        if isinstance(error, OSError):
            return error.strerror or files.first_line(error)
        error = error.__cause__ or error.__context__
    return ""
