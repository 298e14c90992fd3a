"""Token stores of a few speeches, for tests."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

from bert_jax.config import default_config
from bert_jax.store.part import write_parts
from bert_jax.store.preparation import prepare
from bert_jax.store.token_store import (
    PARTS_VERSION,
    SplitWriter,
    TokenStore,
    write_metadata,
)
from bert_jax.text.sources import built_in_files

VOCAB_SIZE = 400


def options(inputs="", **changes):
    data = default_config().data
    data.input = (str(inputs),)
    data.num_processes = 1
    data.update(changes)
    return data


def make(data, output, vocab_size=VOCAB_SIZE):
    return prepare(data, vocab_size, output)


def divide(source, target, num_documents):
    """Copies a finished store; each part of the copy has this many documents, or fewer."""
    shutil.copytree(source / "tokenizer", target / "tokenizer")
    metadata = json.loads((source / "metadata.json").read_text())
    for split in metadata["splits"]:
        store, counts = TokenStore(source / split), {}
        whole = store.part(0)
        for first in range(0, store.num_documents, num_documents):
            name = f"{first // num_documents:05d}"
            with SplitWriter(target / split / name, len(store.token_counts)) as writer:
                for document in range(first, min(first + num_documents, store.num_documents)):
                    start, stop = whole.document_starts[document : document + 2]
                    starts = whole.sentence_starts[start : stop + 1]
                    tokens = store.tokens_at(np.arange(starts[0], starts[-1]))
                    writer.append(tokens, np.diff(starts))
            counts[name] = writer.counts
        write_parts(target / split, counts, has_words=False)
    write_metadata(target, metadata | {"format_version": PARTS_VERSION})
    return target


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
