"""Paths in Google Cloud Storage: all that differs there from a disk, in one place.

An object is there whole or not at all, and is read at any place; but it cannot be appended
to, renamed for nothing, mapped into memory or locked, and there are no directories. What
needs a disk on the way to or from it uses scratch files in the system's temporary
directory (TMPDIR), which have no name and are gone with the process, however that ends.
"""

import base64
import contextlib
import functools
import io
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from etils import epath

from bert_jax.errors import UserError, naming

SCHEME = "gs://"
# Ends the name of a file that is still being written.
PARTIAL = ".partial"
# Read when gs:// is first used: etils would load TensorFlow, which takes seconds; and gcsfs
# would ask by gRPC, before each file, of which kind its bucket is.
os.environ.setdefault("EPATH_USE_TF", "false")
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_READ_BYTES = 2**20
_REACH_SECONDS, _REACH_ATTEMPTS = 20, 3
# Those of the libraries between here and the bucket, whose errors are its, or the network's.
_MODULES = "gcsfs google.auth google.api_core google.cloud aiohttp requests urllib3"
_CLIENTS = tuple(f"{name}." for name in _MODULES.split())


class RemoteFile(NamedTuple):
    """What a listing tells of an object: its size, and the CRC-32C that the server keeps."""

    num_bytes: int
    checksum: str


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is of object storage."""
    return os.fspath(path).startswith(SCHEME)


def check_scheme(path: epath.PathLike, what: str) -> None:
    """Refuses storage that is not known here, which pathlib would take for a directory.

    Args:
      path: As the user gave it.
      what: The key or flag that gave it, for the message.

    Raises:
      UserError: for s3://, hdfs:// and the like.
    """
    scheme, separator, _ = os.fspath(path).partition("://")
    if separator and scheme != "gs":
        raise UserError(
            f"{what} is {path}, but {scheme}:// paths are not supported; give a local path or "
            "gs://BUCKET/NAME"
        )
    if separator and not _bucket(path):
        raise UserError(f"{what} is {path}, which names no bucket; write gs://BUCKET/NAME")


def open_path(path: epath.PathLike, what: str) -> Path | epath.Path:
    """A path as the user gave it, ready to be used: pathlib's, or etils' of a bucket in reach.

    A bucket is asked for once in a process.

    Args:
      path: A local path or gs://BUCKET/NAME.
      what: The key or flag that gave it, for messages.

    Raises:
      UserError: it is of another storage, or its bucket cannot be used; says why.
    """
    check_scheme(path, what)
    if not is_remote(path):
        return Path(path)
    try:
        _reach(_bucket(path))
    except UserError as error:
        raise UserError(f"{what} is {path}, but {error}") from error
    return epath.Path(path)


def make_directory(path: epath.PathLike) -> None:
    """Makes a directory with its parents; in object storage there is nothing to make."""
    if not is_remote(path):
        epath.Path(path).mkdir(parents=True, exist_ok=True)


def write_whole(path: epath.PathLike, content: bytes) -> None:
    """Writes a file that is either whole or absent, or as it was before."""
    if is_remote(path):
        filesystem().pipe_file(os.fspath(path), content)
        return
    path = Path(path)
    partial = path.with_name(path.name + PARTIAL)
    with naming(path, partial), contextlib.ExitStack() as stack:
        stack.callback(partial.unlink, missing_ok=True)
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)


def open_input(path: epath.PathLike) -> BinaryIO:
    """A file to be read from its beginning on."""
    if not is_remote(path):
        return open(path, "rb")  # noqa: SIM115
    # fsspec's own is slow at lines, and takes no limit of their length.
    return io.BufferedReader(filesystem().open(os.fspath(path), "rb"), _READ_BYTES)


class OutputFile:
    """A file that is written in pieces and may be sought in, whole once it is `finish`ed.

    In object storage it is a scratch file until then.
    """

    def __init__(self, path: epath.PathLike):
        self._path = path
        self._file: BinaryIO = tempfile.TemporaryFile() if is_remote(path) else open(path, "wb")

    def write(self, content: bytes) -> None:
        """Appends, or writes over what `seek` has gone back to."""
        with naming(self._path):
            self._file.write(content)

    def seek(self, position: int) -> None:
        with naming(self._path):
            self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()

    def finish(self) -> None:
        """Returns when the file is on disk, or uploaded."""
        with naming(self._path):
            self._file.flush()
            if is_remote(self._path):
                # By a name, as the client opens it again.
                upload(f"/dev/fd/{self._file.fileno()}", self._path)
            else:
                os.fsync(self._file.fileno())
            self._file.close()

    def close(self) -> None:
        """Gives up what is not finished."""
        with naming(self._path):
            self._file.close()


def upload(source: str | os.PathLike, path: epath.PathLike) -> None:
    """Copies a local file to object storage; until the end nothing is there, or the old one."""
    filesystem().put_file(os.fspath(source), os.fspath(path))


def upload_directory(source: Path, path: epath.PathLike, last: Sequence[str]) -> None:
    """Copies all files below a local directory, those with such names at the end."""
    files = [file for file in sorted(source.rglob("*")) if file.is_file()]
    for file in sorted(files, key=lambda file: file.name in last):
        upload(file, epath.Path(path) / file.relative_to(source).as_posix())


def download(path: epath.PathLike, target: str | os.PathLike) -> None:
    """Copies an object to a local file."""
    with naming(target):
        filesystem().get_file(os.fspath(path), os.fspath(target))


@contextlib.contextmanager
def local_copy(path: epath.PathLike) -> Iterator[str]:
    """The name of a local file with the content of this one; itself where it is local."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    with tempfile.TemporaryDirectory(prefix="bert_jax_") as scratch:
        local = os.path.join(scratch, os.path.basename(os.fspath(path)))
        download(path, local)
        yield local


@contextlib.contextmanager
def scratch_directory(parent: epath.PathLike, prefix: str) -> Iterator[epath.Path]:
    """A directory within this one that all hosts of a run can see, removed at the end."""
    if not is_remote(parent):
        with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as name:
            yield epath.Path(name)
        return
    scratch = epath.Path(parent) / f"{prefix}{uuid.uuid4().hex}"
    try:
        yield scratch
    finally:
        remove_directory(scratch)


def read_range(path: epath.PathLike, start: int, stop: int) -> bytes:
    """The bytes from `start` up to `stop` of an object; any number of threads may ask."""
    return filesystem().cat_file(os.fspath(path), start, stop)


def list_files(folder: epath.PathLike) -> dict[str, RemoteFile]:
    """All objects below a folder of object storage, by their names relative to it."""
    root = os.fspath(folder).removeprefix(SCHEME).rstrip("/") + "/"
    found = filesystem().find(root, detail=True)
    return {
        name.removeprefix(root): RemoteFile(info["size"], info.get("crc32c", ""))
        for name, info in found.items()
        # Empty ones that some tools make to show a folder.
        if name.startswith(root) and not name.endswith("/")
    }


def crc32c(path: Path | epath.Path) -> str:
    """A local file's checksum as `list_files` has it; empty where no package computes it."""
    try:
        import google_crc32c
    except ImportError:
        return ""
    checksum = google_crc32c.Checksum()
    with open(path, "rb") as stream:
        while block := stream.read(_READ_BYTES):
            checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def matching_files(pattern: str) -> dict[epath.Path, int]:
    """The objects that a glob matches (** too), and their sizes in bytes."""
    found = filesystem().glob(pattern, detail=True)
    files = {name: info for name, info in found.items() if info["type"] == "file"}
    return {epath.Path(SCHEME + name): info["size"] for name, info in sorted(files.items())}


def num_bytes(path: Path | epath.Path) -> int:
    """A file's size; 0 where there is none."""
    if not path.exists():
        return 0
    return path.stat().length if is_remote(path) else os.path.getsize(path)


def move_directory(folder: epath.PathLike, target: epath.PathLike) -> None:
    """Moves a directory, over one that is there; in object storage, object by object."""
    if is_remote(folder):
        remove_directory(target)
        for name in list_files(folder):
            filesystem().mv_file(f"{folder}/{name}", f"{target}/{name}")
        return
    epath.Path(target).parent.mkdir(parents=True, exist_ok=True)
    remove_directory(target)
    epath.Path(folder).rename(target)


def remove_directory(folder: epath.PathLike) -> None:
    """Removes a directory and all in it, if it is there."""
    if is_remote(folder):
        if names := list_files(folder):
            filesystem().rm([f"{folder}/{name}" for name in names])
    elif epath.Path(folder).exists():
        epath.Path(folder).rmtree()


def problem(error: BaseException | None) -> str:
    """What object storage or the network said, in a line; empty if the error is another's."""
    while error is not None:
        module = f"{type(error).__module__}."
        text = _first_line(error)
        # gcsfs has no class of its own for a lack of rights.
        if isinstance(error, OSError) and text.startswith("Forbidden"):
            # What may not be done by whom is in the second line.
            return ": ".join(str(error).splitlines()[:2])[:300]
        if isinstance(error, OSError) and text.startswith("Project was not passed"):
            # google-cloud-storage's, by which orbax asks of which kind a bucket is.
            return f"no Google Cloud project is known; set GOOGLE_CLOUD_PROJECT ({text})"
        if module.startswith(_CLIENTS):
            return text
        # tensorstore's, which are Python's own.
        if module == "builtins." and f'"{SCHEME}' in text:
            return text
        error = error.__cause__ or error.__context__
    return ""


@functools.cache
def filesystem() -> Any:
    """fsspec's file system of Google Cloud Storage, which etils and orbax use too."""
    _configure()
    import fsspec

    # As etils asks for it, so that it is one for all: credentials are looked up once.
    return fsspec.filesystem("gcs", finalize_on_close=True)


@functools.cache
def _configure() -> None:
    try:
        import gcsfs  # noqa: F401
        from fsspec.config import conf
    except ImportError as error:
        raise UserError(
            "the packages for it are missing: pip install -e '.[gcs]' (gcsfs)"
        ) from error
    emulated = "STORAGE_EMULATOR_HOST" in os.environ
    settings = {
        # Others write there too: orbax, and the run's other hosts.
        "use_listings_cache": False,
        "token": "anon" if emulated else "google_default",
    }
    conf["gcs"] = settings | conf.get("gcs", {})
    # It prints a stack trace beside each error that it raises.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)


@functools.cache
def _reach(bucket: str) -> None:
    """Lists a bucket once, with little patience: gcsfs would try for a minute.

    Raises:
      UserError: a sentence that goes on after "... is gs://..., but".
    """
    _configure()
    import google.auth.exceptions
    import requests

    said = ""
    for attempt in range(_REACH_ATTEMPTS):
        time.sleep(attempt)
        try:
            session, url = _session()
            answer = session.get(
                f"{url}/storage/v1/b/{bucket}/o", params={"maxResults": 1}, timeout=_REACH_SECONDS
            )
        except google.auth.exceptions.DefaultCredentialsError as error:
            raise UserError(
                "no Google Cloud credentials were found: on a Cloud VM give it a service account; "
                "elsewhere run `gcloud auth application-default login`, or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file"
            ) from error
        except google.auth.exceptions.RefreshError as error:
            raise UserError(
                f"the Google Cloud credentials are refused ({_first_line(error)}): run `gcloud "
                "auth application-default login` again, or give the VM's service account the "
                "scope cloud-platform"
            ) from error
        except (requests.RequestException, google.auth.exceptions.GoogleAuthError) as error:
            said = f"storage cannot be reached: {_reason(error)}"
            continue
        if answer.ok:
            return
        if answer.status_code in (400, 404):
            raise UserError(f"there is no bucket {SCHEME}{bucket}; create it, or mend the name")
        if answer.status_code in (401, 403):
            raise UserError(
                f"the bucket {SCHEME}{bucket} may not be listed with these credentials (HTTP "
                f"{answer.status_code}); grant roles/storage.objectAdmin and "
                "roles/storage.legacyBucketReader on it"
            )
        said = f"storage answers HTTP {answer.status_code}; try again later"
    raise UserError(said)


def _session() -> tuple[Any, str]:
    """What asks, and whom."""
    import google.auth
    import google.auth.transport.requests
    import requests

    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        return requests.Session(), emulator if "://" in emulator else f"http://{emulator}"
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    session = google.auth.transport.requests.AuthorizedSession(credentials)
    return session, "https://storage.googleapis.com"


def _bucket(path: epath.PathLike) -> str:
    return os.fspath(path).removeprefix(SCHEME).partition("/")[0]


def _reason(error: BaseException) -> str:
    """The innermost cause of a failed connection: the rest is addresses of objects."""
    while error.__context__ is not None:
        error = error.__context__
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:200]
