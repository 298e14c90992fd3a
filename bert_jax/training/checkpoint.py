"""Checkpoints: atomic and asynchronous. A damaged one is skipped."""

import asyncio
import functools
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.parallel import multihost
from bert_jax.training.state import TrainState

try:
    from orbax.checkpoint._src import asyncio_utils
except ImportError:
    # It is private. Without it, a failed read or write prints many lines before its sentence.
    asyncio_utils = None

_log = logging.getLogger(__name__)
# The statuses with which tensorstore says that a disk or the network failed.
_STORAGE_FAILED = re.compile(
    "UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|"
    "PERMISSION_DENIED|UNAUTHENTICATED"
)


class Checkpointer:
    """Saves and restores `TrainState`s with the position in the data, by step.

    orbax commits a step's folder by renaming it or, in object storage, by a marker file. A killed
    save therefore leaves no folder that appears complete.

    Args:
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
        """Starts saving; training continues once the arrays are copied to the host."""
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), resume=ocp.args.JsonSave(resume)
        )
        self.wait()
        self._writing(lambda: self._manager.save(step, args=args, force=True))

    def wait(self) -> None:
        """Blocks until all saves are complete; raises like `save`."""
        self._writing(self._manager.wait_until_finished)

    def close(self) -> None:
        self._writing(self._manager.close)

    def steps(self) -> list[int]:
        self._manager.reload()
        return sorted(self._manager.all_steps())

    def restore_newest(
        self, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Restores the newest undamaged checkpoint; None if nothing was saved.

        Args:
          abstract_state: The shapes, dtypes and shardings to restore; the mesh may differ from
            the mesh of the run that wrote the checkpoint.
        """
        restored = self._restore(ocp.args.StandardRestore(abstract_state))
        return restored and restored[1:]

    def restore_params(self, abstract_params: Any, step: int | None = None) -> tuple[int, Any]:
        """Restores the parameters alone, without reading the optimizer's state.

        Args:
          abstract_params: Shapes, dtypes and shardings; leaves without a sharding become numpy
            arrays.
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
        restored = self._restore(args, step)
        if restored is None:
            raise UserError(f"{self._directory.parent} has no checkpoint yet")
        return restored[0], restored[1]["params"]

    def _restore(
        self, args: ocp.args.CheckpointArgs, step: int | None = None
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Restores the step, state and `resume` of a checkpoint, by default the newest.

        Newer checkpoints that are damaged are moved away.
        """
        steps, damaged = multihost.run_on_process_zero(self.steps), []
        items = ocp.args.Composite(state=args, resume=ocp.args.JsonRestore())
        for number in reversed(steps) if step is None else {step}.intersection(steps):
            with multihost.agreed():
                restored, problem = self._read(number, items)
            try:
                with multihost.agreed():
                    if problem:
                        raise UserError(problem)
            except UserError as error:
                damaged.append((number, str(error)))
                continue
            multihost.run_on_process_zero(self._set_aside, damaged)
            self._manager.reload()
            return number, restored["state"], restored["resume"]
        if step is not None:
            problem = damaged[0][1] if damaged else "it does not exist"
            others = ", ".join(str(other) for other in steps if other != step) or "none"
            raise UserError(
                f"{self._directory} has no complete checkpoint of step {step} ({problem}); "
                f"the other steps: {others}"
            )
        if damaged:
            # Damaged checkpoints are not moved: with an empty folder, the next start would begin
            # at step 0.
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (the newest: "
                f"{damaged[0][1]}); start again in another work directory"
            )
        return None

    def _read(self, step: int, items: ocp.args.Composite) -> tuple[Any, str]:
        """Returns what a checkpoint holds, and its damage, which two attempts must find.

        Raises:
          UserError: The disk or the network failed twice, which says nothing about the content.
        """
        folder = self._directory / str(step)
        for is_last in (False, True):
            try:
                # The manager's own `restore` ends with a barrier, which waits for a process that
                # fails.
                return ocp.CompositeCheckpointHandler().restore(folder, args=items), ""
            except (jax.errors.JaxRuntimeError, MemoryError):
                raise
            except Exception as error:
                if not is_last:
                    continue
                if _is_of_storage(_cause(error)):
                    raise UserError(
                        f"the checkpoint {folder} cannot be read: {_reason(error)}; correct this "
                        "and run the same command again, or move the checkpoint away to go on "
                        "from the previous one"
                    ) from error
                return None, _reason(error)

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
        """Runs an action of orbax; names the folder if it fails, as on a full disk."""
        try:
            action()
        except Exception as error:
            raise UserError(
                f"a checkpoint could not be written to {self._directory}: {_reason(error)}; "
                "correct this and run the same command again"
            ) from error


@functools.cache
def _hush_orbax() -> None:
    """Silences orbax's log unless the log level is INFO.

    Errors in its threads (a full disk, a damaged file) are raised again in the calling thread.
    orbax would also log them, hundreds of times, and tensorstore each read or write that orbax has
    begun and not ended.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        is_verbose = absl.logging.get_verbosity() > absl.logging.WARNING
        return is_verbose or "/orbax/" not in record.pathname

    absl.logging.get_absl_logger().addFilter(is_wanted)
    if asyncio_utils:
        run_sync = asyncio_utils.run_sync
        asyncio_utils.run_sync = lambda coroutine: run_sync(_ended(coroutine))


async def _ended(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Awaits a coroutine of orbax and then, if it fails, the tasks that it has begun.

    orbax closes the event loop at the first array that fails. The reads and writes of the other
    arrays end later, in tensorstore's threads, which print a traceback for each if the loop is
    closed. A canceled one may be about to end, so tasks are not canceled.
    """
    try:
        return await coroutine
    except Exception:
        # orbax makes a loop for each coroutine, so that the loop has no other tasks.
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _is_of_storage(error: BaseException) -> bool:
    """Returns whether a disk or the network failed, rather than what a file holds."""
    if isinstance(error, ValueError):
        return bool(_STORAGE_FAILED.match(str(error)))
    is_missing = isinstance(error, FileNotFoundError)
    return isinstance(error, OSError) and not is_missing or bool(files.storage_problem(error))


def _reason(error: BaseException) -> str:
    """Returns the first sentence of the error that caused this one."""
    # orbax goes on with advice about its options, tensorstore with all of them.
    text = files.first_line(_cause(error))
    return text.partition(". ")[0].partition(" [tensorstore_spec")[0]


def _cause(error: BaseException) -> BaseException:
    while error.__cause__:
        error = error.__cause__
    return error
