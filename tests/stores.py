"""Token stores of a few speeches, for tests."""

import contextlib
import hashlib
from pathlib import Path
from unittest import mock

from bert_jax.config import default_config
from bert_jax.store import plan
from bert_jax.store.preparation import prepare
from bert_jax.text.sources import built_in_files

VOCAB_SIZE = 400


def options(inputs="", **changes):
    data = default_config().data
    data.input = (str(inputs),)
    data.num_processes = 1
    data.update(changes)
    return data


@contextlib.contextmanager
def parts_of(size):
    """Stores that are prepared in this context have parts of at most this many bytes."""
    with mock.patch.object(plan, "PART_BYTES", size):
        yield


def make(data, output, vocab_size=VOCAB_SIZE):
    return prepare(data, vocab_size, output)


def digest(directory):
    sha = hashlib.sha256()
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file():
            sha.update(path.relative_to(directory).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()


def write_speeches(directory, number, words=300):
    directory.mkdir()
    for path in built_in_files()[:number]:
        text = " ".join(path.read_text("utf-8").split(" ")[:words])
        (directory / path.name).write_text(text, "utf-8")
    return f"{directory}/*.txt"
