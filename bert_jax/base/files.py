"""Reads and writes files on a disk or in Google Cloud Storage (gs://).

`checked_path` checks a path once and returns a pathlib or `etils.epath` path. This module adds what
those libraries lack: atomic writes, directory locks, and copies between local and remote storage.
Copies are made in the system's temporary directory; set TMPDIR to use another.
"""

import contextlib
import fcntl
import functools
import glob
import io
import json
import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import fsspec
from etils import epath

from bert_jax.base.errors import UserError, with_filename

SCHEME = "gs://"
# Data sets of the Hugging Face Hub, which are only read: hf://datasets/OWNER/NAME/FILE.
HUB_SCHEME = "hf://"
# By default, etils loads TensorFlow, which takes seconds, and gcsfs queries the kind of each bucket
# by gRPC.
os.environ.setdefault("EPATH_USE_TF", "false")
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
# Listings are not cached, because other processes write to the bucket too. Setting this at import
# applies it to etils' file system as well.
fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
_READ_BYTES = 2**20
# Far more than any vocabulary, config or list of files has.
_MAX_WHOLE_BYTES = 2**28
# Python's own error names a directory.
_FILE_OR_DIRECTORY = (stat.S_IFREG, stat.S_IFDIR)
# Packages whose exceptions mean that storage or the network failed.
_CLIENTS = ("gcsfs.", "google.auth.", "google.api_core.", "google.cloud.", "aiohttp.", "requests.")
_CLIENTS += ("huggingface_hub.", "httpx")


def is_remote(path: epath.PathLike) -> bool:
    """Returns whether a path is in object storage."""
    return os.fspath(path).startswith(SCHEME)


def is_on_hub(path: epath.PathLike) -> bool:
    return os.fspath(path).startswith(HUB_SCHEME)


def checked_path(path: epath.PathLike, what: str) -> Path | epath.Path:
    """Returns a path that is ready for use; its bucket is checked once per process.

    s3://, hdfs:// and other schemes, which pathlib would treat as directories, are refused.
    """
    scheme, separator, rest = os.fspath(path).partition("://")
    if not separator:
        return Path(path)
    if not is_remote(path):
        raise UserError(
            f"{what} is {path}, but {scheme}:// paths are not supported; give a local path or "
            "gs://BUCKET/NAME"
        )
    _check_bucket(rest.partition("/")[0])
    return epath.Path(path)


def check_output(
    output: epath.PathLike, suffixes: Sequence[str], source: epath.PathLike | None = None
) -> None:
    """Refuses an --output that has another suffix, is a directory, or is the file of --input."""
    path = checked_path(output, "--output")
    if path.suffix not in suffixes or path.is_dir():
        known = " or ".join(f"FILE{suffix}" for suffix in suffixes)
        raise UserError(f"--output is {path}; it must be {known}")
    if source is not None and path.resolve() == checked_path(source, "--input").resolve():
        raise UserError(f"--output is {path}, the file of --input, which would be overwritten")


@contextlib.contextmanager
def new_file(path: epath.PathLike) -> Iterator[BinaryIO]:
    """Yields a seekable file that appears under its name once the block ends without an error.

    It is created exclusively, under a random name in the same directory, so that no link is
    followed and no other process writes to it.
    """
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bert_jax_"))
            partial = Path(scratch, "file")
        else:
            partial = Path(f"{os.fspath(path)}.{secrets.token_hex(4)}.partial")
        with with_filename(path, partial):
            with partial.open("xb") as stream:
                stack.callback(partial.unlink, missing_ok=True)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if is_remote(path):
                filesystem().put_file(str(partial), os.fspath(path))
            else:
                partial.replace(path)


def write_whole(path: epath.PathLike, content: bytes) -> None:
    """Writes a file atomically: a failed write leaves the path absent or unchanged."""
    with new_file(path) as stream:
        stream.write(content)


def write_json(path: epath.PathLike, values: Any) -> None:
    """Writes a JSON file atomically, like `write_whole`; all numbers must be finite."""
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    write_whole(checked_path(path, "the file to write"), text.encode())


def read_json(path: Path | epath.Path, *, optional: bool = False) -> dict[str, Any]:
    """Reads a file that holds one JSON object; raises UserError if it holds something else.

    With `optional`, a file that does not exist is an empty object.
    """
    if optional and not path.exists():
        return {}
    with naming(path):
        values = json.loads(read_whole(path))
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        return values


@contextlib.contextmanager
def naming(path: epath.PathLike) -> Iterator[None]:
    """Names a file or a model that a block reads, if it is not what the block expects.

    The libraries that read other programs' files have exceptions of their own, without the name.
    Problems of the disk or of memory pass unchanged.
    """
    try:
        yield
    except (UserError, MemoryError, FileNotFoundError, ImportError):
        raise
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # A panic of a library in Rust is no Exception.
        # Some libraries, such as gzip, raise an OSError for what a file has in it.
        if isinstance(error, OSError) and (error.errno or storage_problem(error)):
            raise
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{path} is damaged or another program's: {problem}") from error


def inside(directory: Path, name: str, named_by: epath.PathLike) -> Path:
    """Returns the path of what a stored file names in its directory.

    The file itself may be a link, as in the cache of the Hugging Face Hub.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise UserError(f"{named_by}: {name!r} is not the name of a file beside it")
    return directory / path


def read_whole(path: epath.PathLike) -> bytes:
    """Returns the content of a file that is needed at once, such as a vocabulary."""
    check_regular(path)
    with open_input(path) as file:
        content = file.read(_MAX_WHOLE_BYTES + 1)
    if len(content) > _MAX_WHOLE_BYTES:
        raise UserError(f"{path} is larger than {_MAX_WHOLE_BYTES / 2**20:g} MiB")
    return content


def check_regular(path: epath.PathLike) -> None:
    """Refuses a link to a device or a pipe, which may have no end."""
    if not is_remote(path) and stat.S_IFMT(os.stat(path).st_mode) not in _FILE_OR_DIRECTORY:
        raise UserError(f"{path} is not a regular file")


def open_input(path: epath.PathLike) -> BinaryIO:
    if not (is_on_hub(path) or is_remote(path)):
        return open(path, "rb")  # noqa: SIM115
    remote = hub_filesystem() if is_on_hub(path) else filesystem()
    # fsspec's own file reads lines slowly and takes no limit on their length.
    return io.BufferedReader(remote.open(os.fspath(path), "rb"), _READ_BYTES)


def list_files(folder: epath.PathLike) -> dict[str, dict[str, Any]]:
    """Returns the metadata of each object below a folder, by relative name."""
    root = os.fspath(folder).removeprefix(SCHEME).rstrip("/") + "/"
    found = filesystem().find(root, detail=True)
    # Some tools make empty objects "NAME/" to show a folder.
    return {
        name.removeprefix(root): info
        for name, info in found.items()
        if name.startswith(root) and not name.endswith("/")
    }


@contextlib.contextmanager
def local_copy(path: epath.PathLike, names: Sequence[str] | None = None) -> Iterator[Path]:
    """Yields the local path, or a scratch copy of a remote file or directory.

    Memory maps of the copy stay valid after the block; its disk space is freed when they are
    closed.
    """
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="bert_jax_") as scratch:
        target = Path(scratch, os.path.basename(os.fspath(path).rstrip("/")))
        with with_filename(f"a copy of {path} in {scratch}"):
            if names is None:
                names = list(list_files(path))
            if names or not filesystem().isfile(os.fspath(path)):
                target.mkdir()
                remote, local = ([f"{root}/{name}" for name in names] for root in (path, target))
                filesystem().get(remote, local)
            else:
                filesystem().get_file(os.fspath(path), str(target))
        yield target


@contextlib.contextmanager
def local_output(path: epath.PathLike) -> Iterator[Path]:
    """Yields the local directory, or a scratch one that is uploaded when the block ends."""
    if not is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="bert_jax_") as scratch:
        yield Path(scratch)
        for file in filter(Path.is_file, Path(scratch).rglob("*")):
            target = f"{os.fspath(path)}/{file.relative_to(scratch).as_posix()}"
            filesystem().put_file(str(file), target)


def check_no_pattern(directory: epath.PathLike) -> None:
    """Refuses a directory for checkpoints whose name orbax would read as a pattern of names."""
    if glob.has_magic(os.path.abspath(directory)):
        raise UserError(f"{directory} has one of the characters * ? [ in it; choose another name")


def remove_directory(folder: epath.PathLike) -> None:
    """Removes a directory and everything in it, if it exists."""
    epath.Path(folder).rmtree(missing_ok=True)


def move(source: epath.PathLike, target: epath.PathLike) -> None:
    """Moves a file or directory, replacing a directory of this name."""
    remove_directory(target)
    if is_remote(source):
        filesystem().mv(os.fspath(source), os.fspath(target), recursive=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(source, target)


@contextlib.contextmanager
def lock_directory(directory: epath.PathLike, refusal: str) -> Iterator[None]:
    """Locks a directory during the block, or raises UserError with the message `refusal`.

    Object storage has no locks.
    """
    if is_remote(directory):
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # The system releases the lock when the process ends, even if it is killed.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(refusal) from None
        except OSError:
            pass  # The file system has no locks.
        yield
    finally:
        os.close(descriptor)


def storage_problem(error: BaseException | None) -> str:
    """Describes an error from object storage or the network; "" for other errors."""
    while error is not None:
        text = first_line(error)
        # gcsfs raises plain OSErrors, tensorstore plain ValueErrors.
        plain = type(error).__module__ == "builtins"
        if (
            f"{type(error).__module__}.".startswith(_CLIENTS)
            or (plain and f'"{SCHEME}' in text)
            or (isinstance(error, OSError) and text.startswith(("Forbidden", "Project was not")))
        ):
            return ": ".join(str(error).splitlines()[:2])[:300] or text
        error = error.__cause__ or error.__context__
    return ""


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or its type's name."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:1000]


@functools.cache
def filesystem() -> Any:
    """Returns the fsspec file system of Google Cloud Storage that etils and orbax use too."""
    import gcsfs  # noqa: F401

    token = "anon" if "STORAGE_EMULATOR_HOST" in os.environ else "google_default"
    fsspec.config.conf["gcs"].setdefault("token", token)
    # These packages also log the errors that they raise, with a stack trace.
    for name in ("gcsfs", "google.auth"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # The same arguments as in etils give the same instance.
    return fsspec.filesystem("gcs", finalize_on_close=True)


@functools.cache
def hub_filesystem() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


@functools.cache
def _check_bucket(bucket: str) -> None:
    try:
        filesystem().call("GET", "b/{}/o", bucket, maxResults=1)
    except ImportError:
        raise
    except Exception as error:
        raise UserError(
            f"the bucket {SCHEME}{bucket} cannot be listed: {first_line(error)}; create it, or "
            "correct the name; on a Cloud VM, give its service account the scope cloud-platform "
            "and the roles storage.objectAdmin and storage.legacyBucketReader; elsewhere run "
            "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a "
            "key file"
        ) from error
