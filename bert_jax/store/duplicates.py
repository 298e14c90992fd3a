"""Removes the documents of a corpus that are copies of earlier ones (config.data.duplicates).

    DIR/unfinished/tokenized/00000/   a part before its copies are removed
        train/, heldout/    splits
        documents.npy       int64 [D, F]: a `DocumentRow` for each document, in order
    DIR/unfinished/fates-00000.npy    uint8 [D]: what happens to each document of a part, see `KEPT`

Documents whose tokens have the same 64-bit hash are copies of each other. Only the first one is
kept, whichever split it is in.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.base import files
from bert_jax.store.part import Part
from bert_jax.store.plan import UNFINISHED, Directory
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.token_store import SPLITS
from bert_jax.store.tokenization import TokenizedDocument
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.sources import Place

TOKENIZED = f"{UNFINISHED}/tokenized"
# What happens to a document: it is kept, or it is a copy of one to train on or of a held-out one.
KEPT, COPY, COPY_OF_HELDOUT = 0, 1, 2
# The counts of what was removed, as metadata.json has them.
REMOVED = (
    "train_documents",
    "train_tokens",
    "heldout_documents",
    "heldout_tokens",
    "copies_of_heldout",
)


class DocumentRow(NamedTuple):
    """A document without its tokens; `source` is an index into the list of its part."""

    token_hash: int
    is_heldout: int
    num_bytes: int
    source: int
    line: int
    start: int


class PartDocuments:
    """Collects the documents of a part while they are written to its splits."""

    def __init__(self) -> None:
        self._values = array("q")
        self._index: dict[str, int] = {}

    def append(self, document: TokenizedDocument) -> None:
        digest = hashlib.blake2b(document.tokens.tobytes(), digest_size=8).digest()
        token_hash = int.from_bytes(digest, "little", signed=True)
        place = document.place
        source = self._index.setdefault(place.source, len(self._index))
        self._values.extend(
            DocumentRow(
                *(token_hash, document.is_heldout, document.num_bytes),
                *(source, place.line, place.start),
            )
        )

    def write(self, directory: Path) -> list[str]:
        """Writes documents.npy into the directory of the part; returns the sources."""
        directory.mkdir(parents=True, exist_ok=True)
        row_DxF = np.array(self._values, np.int64).reshape(-1, len(DocumentRow._fields))
        np.save(directory / "documents.npy", row_DxF)
        return list(self._index)


def part_path(output: Directory, number: int) -> Directory:
    return output / TOKENIZED / f"{number:05d}"


def decide(output: Directory, num_parts: int) -> dict[str, Any]:
    """Writes the fates of all documents; returns the content of fates.json, which is empty."""
    rows = [
        _load(part_path(output, number) / "documents.npy")[:, :2].copy()
        for number in range(num_parts)
    ]
    hash_D, is_heldout_D = np.concatenate(rows).T
    _, first_H, inverse_D = np.unique(hash_D, return_index=True, return_inverse=True)
    first_D = first_H[inverse_D]
    fate_D = np.where(is_heldout_D[first_D], COPY_OF_HELDOUT, COPY).astype(np.uint8)
    fate_D[first_D == np.arange(len(first_D))] = KEPT
    of_parts = np.split(fate_D, np.cumsum([len(part) for part in rows])[:-1])
    for number, fate_N in enumerate(of_parts):
        with files.new_file(_fates_path(output, number)) as file:
            np.save(file, fate_N)
    return {}


def _fates_path(output: Directory, number: int) -> Directory:
    return output / UNFINISHED / f"fates-{number:05d}.npy"


def _load(path: Directory) -> np.ndarray:
    with files.open_input(path) as file:
        return np.load(file)


def select(
    output: Directory,
    part: Path,
    number: int,
    result: Mapping[str, Any],
    writers: Mapping[str, SplitWriter],
) -> dict[str, Any]:
    """Copies the documents of a part that are kept.

    Args:
      part: A local copy of the directory of the part.
      result: The result of the stage "tokenize" for the part.
      writers: A writer for each split.

    Returns:
      The result of the stage "select": that of "tokenize", with what was "removed" from the splits,
      without the removed documents, which count as dropped.
    """
    row_DxF, fate_D = np.load(part / "documents.npy"), _load(_fates_path(output, number))
    stores = {name: Part(part / name) for name in result["splits"]}
    read: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    dropped = BadRecords("skip", "")
    for values, fate in zip(row_DxF.tolist(), fate_D.tolist(), strict=True):
        row = DocumentRow(*values)
        name = SPLITS[row.is_heldout]
        store, index = stores[name], read[name]
        read[name] += 1
        if fate == KEPT:
            writers[name].copy(store, index, row.num_bytes)
            continue
        start, end = store.sentence_starts[store.document_starts[index : index + 2]].tolist()
        removed.update({f"{name}_documents": 1, f"{name}_tokens": end - start})
        removed["copies_of_heldout"] += fate == COPY_OF_HELDOUT and not row.is_heldout
        dropped.drop("duplicate", Place(result["sources"][row.source], row.line, row.start))
    return {
        **{key: value for key, value in result.items() if key != "sources"},
        "splits": {name: writer.counts for name, writer in writers.items()},
        "dropped": {**result["dropped"], **dropped.dropped},
        "first_dropped": {**result["first_dropped"], **dropped.first_dropped},
        "removed": removed,
    }


def removed_text(removed: Mapping[str, int], num_tokens: int) -> str:
    """Returns a sentence on what was removed from a corpus of this many tokens."""
    documents = removed["train_documents"] + removed["heldout_documents"]
    tokens = removed["train_tokens"] + removed["heldout_tokens"]
    return (
        f"removed {documents:,} documents that are copies of others, with {tokens:,} tokens "
        f"({tokens / max(num_tokens, 1):.1%}): {removed['train_documents']:,} to train on "
        f"({removed['copies_of_heldout']:,} of them copies of held-out ones) and "
        f"{removed['heldout_documents']:,} held-out ones"
    )
