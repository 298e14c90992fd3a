"""Checkpoints: atomic, asynchronous, and verified before they are restored."""

import base64
import errno
import functools
import logging
import os
import re
import shutil
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
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

CHECKSUMS = "checksums.json"
_READ_BYTES = 1 << 22
# Extra space for a checkpoint's small files, which occupy whole disk blocks.
_FOLDER_BYTES = 1 << 18
# The files that orbax writes at the commit; _MARKER marks a complete folder in object storage.
_MARKER = "commit_success.txt"
_WRITTEN_AT_COMMIT = ("_CHECKPOINT_METADATA", _MARKER)
_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores `TrainState`s with the position in the data, by step.

    orbax commits a step's folder by renaming it or, in object storage, by a marker file. A killed
    save therefore leaves no folder that appears complete. orbax does not detect later damage, so
    CHECKSUMS, with the size and checksum of every file, is added just before the commit and
    compared before a restore.

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
        self._directory = epath.Path(files.open_path(directory, "the checkpoints' directory"))
        if files.is_remote(directory):
            if not read_only:
                self._mark_copies()
        else:
            # orbax refuses a relative path, at the first save.
            self._directory = self._directory.absolute()
        self._read_only = read_only
        self._keep, self._keep_every_steps = keep, keep_every_steps
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None if read_only else keep,
            keep_period=keep_every_steps or None,
            read_only=read_only,
            create=not read_only,
            cleanup_tmp_directories=not read_only,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._add_checksums),
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
            state=ocp.args.StandardSave(state), resume=ocp.args.JsonSave(resume)
        )
        self.wait()
        self._writing(lambda: self._check_space(state))
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
            that of the run that wrote the checkpoint.

        Raises:
          UserError: Every checkpoint is damaged, or the shapes differ.
        """
        # Process 0 chooses the step and sets damaged checkpoints aside; the others wait for it.
        step = multihost.run_on_process_zero(lambda: self._newest_whole(self.steps()))
        if not self._read_only:
            multihost.run_on_process_zero(self._remove_remains)
        self._manager.reload()
        if step is None:
            return None
        self._check_shapes(step, abstract_state.params)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract_state), resume=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=args)
        return restored["state"], restored["resume"]

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
          UserError: The step does not exist, every checkpoint is damaged, or the shapes differ.
        """

        def choose() -> int | None:
            steps = self.steps()
            if step is None:
                return self._newest_whole(steps)
            problem = self._problem(step) if step in steps else "it does not exist"
            if problem:
                others = ", ".join(str(other) for other in steps if other != step) or "none"
                raise UserError(
                    f"{self._directory} has no complete checkpoint of step {step} ({problem}); the "
                    f"other steps: {others}"
                )
            return step

        chosen = multihost.run_on_process_zero(choose)
        self._manager.reload()
        if chosen is None:
            return None

        self._check_shapes(chosen, abstract_params)

        def restore_args(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
            if leaf.sharding is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape)

        args = ocp.args.PyTreeRestore(
            item={"params": abstract_params},
            restore_args={"params": jax.tree.map(restore_args, abstract_params)},
            partial_restore=True,
        )
        restored = self._manager.restore(chosen, args=ocp.args.Composite(state=args))
        return chosen, restored["state"]["params"]

    def _newest_whole(self, steps: list[int]) -> int | None:
        """Returns the last undamaged of these steps and sets later ones aside."""
        damaged: list[tuple[int, str]] = []
        for step in reversed(steps):
            problem = self._problem(step)
            if problem is not None:
                damaged.append((step, problem))
                continue
            for step_and_problem in damaged:
                self._set_aside(*step_and_problem)
            return step
        if damaged:
            # Damaged checkpoints stay in place. With an empty folder, the next start would begin
            # at step 0.
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (the newest: "
                f"{damaged[0][1]}); start again in another work directory"
            )
        return None

    def _remove_remains(self) -> None:
        """Removes the remains of checkpoints whose deletion was interrupted by a kill."""
        for step in self.steps()[: -self._keep]:
            is_kept = self._keep_every_steps and step % self._keep_every_steps == 0
            if not is_kept and self._problem(step):
                files.remove_directory(self._directory / str(step))

    def _check_shapes(self, step: int, abstract_params: Any) -> None:
        """Refuses a checkpoint of other shapes, which another version of bert_jax wrote."""
        folder = self._directory / str(step)
        saved = ocp.PyTreeCheckpointHandler().metadata(folder / "state").tree["params"]
        shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params):
            if (found := shapes.get(path)) != leaf.shape:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                saved_as = "missing" if found is None else f"of shape {found}"
                raise UserError(
                    f"{folder}: {name} is {saved_as}, and of shape {leaf.shape} in this run's "
                    "model; another version of bert_jax wrote it: continue with that version, or "
                    "start in another work directory"
                )

    def _problem(self, step: int) -> str | None:
        """Describes what is wrong with a checkpoint's files, if anything."""
        folder = self._directory / str(step)
        try:
            expected = files.read_json(folder / CHECKSUMS)
            found = _list(folder)
            for name, (size, checksum) in expected.items():
                if name not in found:
                    return f"{name} is missing"
                if (size, checksum) != _size_and_checksum(folder / name, found[name], checksum):
                    return f"{name} has changed since it was written"
            for name in found.keys() - expected.keys():
                if os.path.basename(name) not in (CHECKSUMS, *_WRITTEN_AT_COMMIT):
                    return f"{CHECKSUMS} does not list {name}"
        except FileNotFoundError:
            return f"{CHECKSUMS} is missing"
        except (UserError, TypeError, ValueError):
            return f"{CHECKSUMS} cannot be read"
        return None

    def _set_aside(self, step: int, problem: str) -> None:
        folder = self._directory / str(step)
        kept = ""
        if not self._read_only:
            # The step will be saved again under this name.
            moved = self._directory.parent / "damaged_checkpoints" / str(step)
            files.move(folder, moved)
            self._manager.reload()
            kept = f"; it was moved to {moved}"
        _log.warning(
            "checkpoint %s is damaged (%s) and is skipped; the previous one is used%s",
            folder,
            problem,
            kept,
        )

    def _check_space(self, state: TrainState) -> None:
        """Raises OSError if the disk is too full; orbax would leave half a checkpoint."""
        if files.is_remote(self._directory) or jax.process_count() > 1:
            return
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) * 1.05 + _FOLDER_BYTES
        if shutil.disk_usage(self._directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))

    def _add_checksums(self) -> None:
        """Adds CHECKSUMS when a save's files are written, before orbax commits the folder."""
        if jax.process_index() != 0:
            return
        for folder in self._directory.iterdir():
            if folder.is_dir() and not (folder / CHECKSUMS).exists():
                sums = {
                    name: _size_and_checksum(folder / name, info)
                    for name, info in sorted(_list(folder).items())
                    if os.path.basename(name) not in _WRITTEN_AT_COMMIT
                }
                files.write_json(folder / CHECKSUMS, sums)

    def _mark_copies(self) -> None:
        """Marks as complete all checkpoints that were copied from a disk to a bucket.

        Without the marker, orbax would take them for killed saves and delete them.
        """
        found = files.list_files(self._directory)
        for name in [name for name in found if os.path.basename(name) == CHECKSUMS]:
            step = os.path.dirname(name)
            try:
                sums = files.read_json(self._directory / name)
                from_disk = all(isinstance(checksum, int) for _, checksum in sums.values())
            except (UserError, TypeError, ValueError):
                continue
            if from_disk and f"{step}/{_MARKER}" not in found:
                for part in {"", *(f"{n.partition('/')[0]}/" for n in sums if "/" in n)}:
                    files.write_whole(self._directory / f"{step}/{part}{_MARKER}", b"copied")

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
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = show_others


def _list(folder: epath.Path) -> dict[str, dict[str, Any]]:
    """Returns the metadata of each file below a folder, by relative name."""
    if files.is_remote(folder):
        return files.list_files(folder)
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): {"size": path.stat().st_size} for path in paths}


def _size_and_checksum(
    file: epath.Path, info: dict[str, Any], like: int | str | None = None
) -> tuple[int, int | str]:
    """Returns a file's size and its CRC-32, or the CRC-32C that object storage keeps for it.

    Args:
      file: The file.
      info: Its entry of `_list`.
      like: An expected checksum. The result is of the same kind, because a checkpoint may have
        been copied from a disk to object storage or back.
    """
    if "crc32c" in info and not isinstance(like, int):
        return info["size"], info["crc32c"]
    if isinstance(like, str):
        try:
            import google_crc32c
        except ImportError:
            return info["size"], like
        checksum = google_crc32c.Checksum()
        with files.open_input(file) as stream:
            while block := stream.read(_READ_BYTES):
                checksum.update(block)
        return info["size"], base64.b64encode(checksum.digest()).decode()
    crc = 0
    with files.open_input(file) as stream:
        while block := stream.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
    return info["size"], crc


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
