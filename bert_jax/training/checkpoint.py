"""Checkpoints: atomic, asynchronous, checked before they are trusted."""

import errno
import functools
import json
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import absl.logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.parallel import multihost
from bert_jax.training.state import TrainState

CHECKSUMS = "checksums.json"
_READ_BYTES = 1 << 22
# What a checkpoint takes beside its arrays: small files, in whole blocks.
_FOLDER_BYTES = 1 << 18
# Says in object storage, which has no rename, that a folder is complete.
_MARKER = "commit_success.txt"
_WRITTEN_AT_COMMIT = ("_CHECKPOINT_METADATA", _MARKER)
_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves and restores `TrainState`s with the position in the data, by step.

    orbax commits a step's folder by renaming it, or in object storage by a marker in
    it, so a killed save leaves nothing that looks complete. It does not notice bits
    that changed on disk afterwards: a list of every file's size and CRC-32 (in object
    storage the CRC-32C that it keeps itself) is added just before the commit and
    compared before a restore.

    Args:
      directory: WORKDIR/checkpoints.
      keep: How many of the newest stay.
      keep_every_steps: Steps that are multiples of this stay too; 0: none.
      read_only: Nothing is created, moved or deleted.
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
        # orbax refuses a relative path, at the first save.
        self._directory = epath.Path(storage.open_path(directory, "the checkpoints' directory"))
        if storage.is_remote(directory):
            self._mark_copies()
        else:
            self._directory = self._directory.absolute()
        self._read_only = read_only
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
        """Starts saving; training goes on as soon as the arrays are copied to the host.

        Args:
          step: Steps taken so far; the folder's name.
          state: What to save.
          resume: JSON-able: where in the data the run stands, and the like.

        Raises:
          UserError: this or the save before could not be written (a full disk).
        """
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), resume=ocp.args.JsonSave(resume)
        )
        self.wait()
        self._writing(lambda: self._check_space(state))
        self._writing(lambda: self._manager.save(step, args=args, force=True))

    def wait(self) -> None:
        """Returns when everything saved is on disk; raises as `save` does."""
        self._writing(self._manager.wait_until_finished)

    def close(self) -> None:
        self._writing(self._manager.close)

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, oldest first."""
        self._manager.reload()
        return sorted(self._manager.all_steps())

    def restore_newest(
        self, abstract_state: TrainState
    ) -> tuple[TrainState, dict[str, Any]] | None:
        """Restores the newest checkpoint that is whole; None where there is none.

        Args:
          abstract_state: Shapes, dtypes and shardings wanted: those of today's mesh,
            whatever mesh the checkpoint was written on.

        Raises:
          UserError: there are checkpoints, and not one is whole, or of these shapes.
        """
        # What is damaged, and is set aside, all processes must hear from one.
        step = multihost.run_on_process_zero(lambda: self._newest_whole(self.steps()))
        self._manager.reload()
        return None if step is None else self._restore(step, abstract_state)

    def restore_params(
        self, abstract_params: Any, step: int | None = None
    ) -> tuple[int, Any] | None:
        """Restores the parameters alone, without reading the optimizer's state.

        Args:
          abstract_params: Shapes and dtypes, and the shardings wanted; numpy arrays are
            made of leaves without one.
          step: Which checkpoint; None: the newest that is whole.

        Returns:
          The checkpoint's step and its parameters; None where there is none.

        Raises:
          UserError: there are checkpoints, and not one is whole, or not that one; or it is
            not of these shapes.
        """

        def choose() -> int | None:
            steps = self.steps()
            if step is not None and step not in steps:
                raise UserError(f"{self._directory} has no checkpoint of step {step}")
            return self._newest_whole(steps if step is None else [step])

        chosen = multihost.run_on_process_zero(choose)
        self._manager.reload()
        if chosen is None:
            return None

        self._check_shapes(chosen, abstract_params)

        def how(leaf: jax.ShapeDtypeStruct) -> ocp.RestoreArgs:
            if leaf.sharding is None:
                return ocp.RestoreArgs(restore_type=np.ndarray)
            return ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape)

        args = ocp.args.PyTreeRestore(
            item={"params": abstract_params},
            restore_args={"params": jax.tree.map(how, abstract_params)},
            partial_restore=True,
        )
        restored = self._manager.restore(chosen, args=ocp.args.Composite(state=args))
        return chosen, restored["state"]["params"]

    def _newest_whole(self, steps: list[int]) -> int | None:
        """The last of these steps whose files are what was written; None if there is none."""
        damaged: list[tuple[int, str]] = []
        for step in reversed(steps):
            problem = self._problem(step)
            if problem is not None:
                damaged.append((step, problem))
                continue
            # What fails from here on is not the files' fault.
            for step_and_problem in damaged:
                self._set_aside(*step_and_problem)
            return step
        if damaged:
            # Left where they are: moved, the next start would find an empty folder,
            # begin at step 0 and write over what is left of the run.
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read (the newest: "
                f"{damaged[0][1]}); start again in another work directory"
            )
        return None

    def _restore(self, step: int, abstract_state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        self._check_shapes(step, abstract_state.params)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract_state), resume=ocp.args.JsonRestore()
        )
        restored = self._manager.restore(step, args=args)
        return restored["state"], restored["resume"]

    def _check_shapes(self, step: int, abstract_params: Any) -> None:
        """Refuses parameters that another version of bert_jax laid out in other shapes."""
        folder = self._directory / str(step)
        saved = ocp.PyTreeCheckpointHandler().metadata(folder / "state").tree["params"]
        shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(saved)}
        for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params):
            if (found := shapes.get(path)) != leaf.shape:
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                there = "not there" if found is None else f"of shape {found}"
                raise UserError(
                    f"{folder}: {name} is {there}, and of shape {leaf.shape} in this run's model; "
                    "another version of bert_jax wrote it: go on with that, or start in another "
                    "work directory"
                )

    def _problem(self, step: int) -> str | None:
        """What is wrong with a checkpoint's files, if anything."""
        folder = self._directory / str(step)
        listing = folder / CHECKSUMS
        if not listing.exists():
            return f"{CHECKSUMS} is missing"
        try:
            expected = json.loads(listing.read_bytes())
            remote = storage.list_files(folder) if storage.is_remote(folder) else {}
            for name, (size, checksum) in expected.items():
                if not (name in remote or (folder / name).exists()):
                    return f"{name} is missing"
                if _sum_like(checksum, folder / name, remote.get(name)) != (size, checksum):
                    return f"{name} is not what was written"
        except (AttributeError, TypeError, ValueError):
            return f"{CHECKSUMS} cannot be read"
        return None

    def _set_aside(self, step: int, problem: str) -> None:
        folder = self._directory / str(step)
        kept = ""
        if not self._read_only:
            # Its step will be saved again, under this name.
            moved = self._directory.parent / "damaged_checkpoints" / str(step)
            storage.move_directory(folder, moved)
            self._manager.reload()
            kept = f"; it was moved to {moved}"
        _log.warning(
            "checkpoint %s is damaged (%s) and is skipped, the one before is used%s",
            folder,
            problem,
            kept,
        )

    def _check_space(self, state: TrainState) -> None:
        """Fails before anything is written: orbax would leave half a checkpoint."""
        if storage.is_remote(self._directory) or jax.process_count() > 1:
            return
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) * 1.05 + _FOLDER_BYTES
        if shutil.disk_usage(self._directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))

    def _add_checksums(self) -> None:
        """Called by orbax when a save's files are written, before it renames the folder."""
        if jax.process_index() != 0:
            return
        for folder in self._directory.iterdir():
            listing = folder / CHECKSUMS
            if not folder.is_dir() or listing.exists():
                continue
            if storage.is_remote(folder):
                # The storage has computed them as it took the files; nothing is read back.
                sums = storage.list_files(folder)
            else:
                files = sorted(_files(folder))
                sums = {str(file.relative_to(folder)): _checksum(file) for file in files}
            # orbax writes these at the commit, after this.
            for name in [n for n in sums if n.rpartition("/")[2] in _WRITTEN_AT_COMMIT]:
                del sums[name]
            storage.write_whole(listing, json.dumps(sums, indent=1).encode())

    def _mark_copies(self) -> None:
        """Marks checkpoints that were copied from a disk as complete, which they are there.

        In object storage orbax takes a folder without the marker for a save that was
        killed, and would remove it.
        """
        files = storage.list_files(self._directory)
        for name in [name for name in files if epath.Path(name).name == CHECKSUMS]:
            step = name.partition("/")[0]
            if f"{step}/{_MARKER}" in files:
                continue
            try:
                sums = json.loads((self._directory / name).read_bytes())
                from_disk = all(isinstance(checksum, int) for _, checksum in sums.values())
            except (AttributeError, TypeError, ValueError):
                continue
            if from_disk:
                for folder in ("", *{f"{part.partition('/')[0]}/" for part in sums if "/" in part}):
                    marker = self._directory / f"{step}/{folder}{_MARKER}"
                    storage.write_whole(marker, b"copied from a disk")

    def _writing(self, action) -> None:
        try:
            action()
        except Exception as error:
            if not _disk_problem(error):
                raise
            failed = f"a checkpoint could not be written to {self._directory}"
            if storage.is_remote(self._directory):
                # Which the last good one is, it may not tell now either.
                raise UserError(
                    f"{failed}: {_disk_problem(error)}; when that is mended the same command goes "
                    "on from the last good one"
                ) from error
            steps = self.steps()
            last = f"the last good one is of step {steps[-1]}" if steps else "there is none yet"
            raise UserError(
                f"{failed}: {_disk_problem(error)}; {last}; make room and run the same command "
                "again"
            ) from error


@functools.cache
def _hush_orbax() -> None:
    """Keeps its own words off the screen, unless INFO is asked for: we say what matters.

    What fails in a thread of orbax's (a full disk, a damaged file) is raised again in
    ours, but would also be told hundreds of times over by orbax, asyncio and tensorstore.
    """

    def is_wanted(record: logging.LogRecord) -> bool:
        asked = absl.logging.get_verbosity() > absl.logging.WARNING
        return asked or "/orbax/" not in record.pathname

    absl.logging.get_absl_logger().addFilter(is_wanted)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def show_others(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = show_others


def _files(folder: epath.Path) -> Iterator[epath.Path]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _checksum(file: epath.Path) -> tuple[int, int]:
    size = checksum = 0
    with storage.open_input(file) as stream:
        while block := stream.read(_READ_BYTES):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return size, checksum


def _sum_like(
    checksum: int | str, file: epath.Path, remote: storage.RemoteFile | None
) -> tuple[int, int | str]:
    """The size and checksum that a file has now: of the kind that was noted at the time.

    A checkpoint may have been copied from a disk to object storage, or back.
    """
    if isinstance(checksum, int):
        return _checksum(file)
    if remote:
        return remote
    return storage.num_bytes(file), storage.crc32c(file) or checksum


def _disk_problem(error: BaseException | None) -> str:
    """What the system said, if a file could not be written; else empty."""
    while error is not None:
        # tensorstore reports a full disk as a ValueError with the system's words in it.
        for number in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
            if os.strerror(number) in str(error):
                return os.strerror(number)
        if said := storage.problem(error):
            return said
        if isinstance(error, OSError):
            return error.strerror or _first_line(error)
        error = error.__cause__ or error.__context__
    return ""


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:200]
