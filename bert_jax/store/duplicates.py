"""Finds the documents of a corpus that are copies of earlier ones (config.data.duplicates).

    DIR/unfinished/tokenized/00000/   a part before its copies are removed
        train/, heldout/    splits
        documents.npy       int64 [D, F]: a `DocumentRow` for each document, in order
        clusters.npy        int64 [2, D]: the first document of the part that each is linked to, and
                            whether it is held out
        keys.bin            `_ENTRY` [N], sorted by key: each key that occurs in the part, with the
                            first document that has it
    DIR/unfinished/pairs-00000.npy    int64 [P, 2]: documents of the corpus with a key in common
    DIR/unfinished/fates.bin          one byte for each document of the corpus: see `KEPT`

Documents with a key in common are linked, and of all that are linked, directly or through others,
only the first is kept, whichever split it is in. The result depends neither on the order in which
pairs are found nor on how the input is cut into parts.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.base import files
from bert_jax.store.minhash import document_keys
from bert_jax.store.part import Part
from bert_jax.store.plan import UNFINISHED, Directory, read_file, result_name
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.token_store import SPLITS
from bert_jax.text.bad_records import BadRecord, BadRecords
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
_ENTRY = np.dtype([("key", "<u8"), ("document", "<u4")])
# Keys are counted by their upper bits, and sorted in buckets of whole cells.
_CELL_BITS = 12
_NUM_CELLS = 2**_CELL_BITS
_BUCKET_ENTRIES = 2**20
_READ_ENTRIES = 2**18
# The number of files that are read at a time, which matters for object storage.
_NUM_READERS = 16


class DocumentRow(NamedTuple):
    """A document without its tokens; `source` is an index into the list of its part."""

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

    def append(self, place: Place, num_bytes: int, is_heldout: bool) -> None:
        source = self._index.setdefault(place.source, len(self._index))
        self._values.extend(DocumentRow(is_heldout, num_bytes, source, place.line, place.start))

    def write(self, directory: Path, kind: str) -> dict[str, Any]:
        """Writes what describes a part beside its splits.

        Args:
          directory: The directory of the part.
          kind: See `document_keys`.

        Returns:
          The number of "documents", their "sources", and "cell_starts", the rows of keys.bin
          at which the cells begin.
        """
        directory.mkdir(parents=True, exist_ok=True)
        row_DxF = np.array(self._values, np.int64).reshape(-1, len(DocumentRow._fields))
        np.save(directory / "documents.npy", row_DxF)
        is_heldout_D = row_DxF[:, 0] == 1
        cluster_D, cell_starts = _write_keys(directory, is_heldout_D, kind)
        np.save(directory / "clusters.npy", np.stack([cluster_D, is_heldout_D]))
        return {
            "documents": len(row_DxF),
            "sources": list(self._index),
            "cell_starts": cell_starts.tolist(),
        }


def _write_keys(
    directory: Path, is_heldout_D: np.ndarray, kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """Writes keys.bin; returns the clusters [D] and the row at which each cell begins."""
    unsorted = directory / "unsorted.bin"
    with unsorted.open("wb") as file:
        for split in SPLITS:
            if not (directory / split).exists():
                continue
            document_of_S = np.flatnonzero(is_heldout_D == (split == "heldout"))
            for document_N, key_N in document_keys(Part(directory / split), kind):
                entry_N = np.empty(len(key_N), _ENTRY)
                entry_N["key"], entry_N["document"] = key_N, document_of_S[document_N]
                file.write(entry_N.tobytes())
    cluster_D = np.arange(len(is_heldout_D))
    counts_C = np.zeros(_NUM_CELLS, np.int64)
    entry_N = np.memmap(unsorted, _ENTRY, "r") if unsorted.stat().st_size else np.zeros(0, _ENTRY)
    cells = bucket_cells(len(entry_N))
    with (directory / "keys.bin").open("wb") as file:
        for first, stop in zip(cells[:-1], cells[1:], strict=True):
            inside = _entries_inside(entry_N, first, stop)
            key_M, document_M, pair_Px2 = linked(inside["key"], inside["document"].astype(np.int64))
            join(cluster_D, pair_Px2)
            entry_M = np.empty(len(key_M), _ENTRY)
            entry_M["key"], entry_M["document"] = key_M, document_M
            file.write(entry_M.tobytes())
            counts_C += np.bincount(_cells(key_M), minlength=_NUM_CELLS)
    unsorted.unlink()
    return flattened(cluster_D), np.append(0, np.cumsum(counts_C))


def _entries_inside(entry_N: np.ndarray, first: int, stop: int) -> np.ndarray:
    """Returns the entries whose keys are in a range of cells."""
    found = [np.zeros(0, _ENTRY)]
    for begin in range(0, len(entry_N), _READ_ENTRIES):
        block = entry_N[begin : begin + _READ_ENTRIES]
        cell_N = _cells(block["key"])
        found.append(block[(cell_N >= first) & (cell_N < stop)])
    return np.concatenate(found)


def _cells(key_N: np.ndarray) -> np.ndarray:
    return (key_N >> np.uint64(64 - _CELL_BITS)).astype(np.int64)


def bucket_cells(num_entries: int) -> list[int]:
    """Returns the cells at which buckets of about `_BUCKET_ENTRIES` begin, and the end."""
    number = min(max(1, -(-num_entries // _BUCKET_ENTRIES)), _NUM_CELLS)
    return [_NUM_CELLS * i // number for i in range(number + 1)]


def linked(key_N: np.ndarray, document_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Links documents that have a key in common.

    Returns:
      The distinct keys, sorted; the first document of each; and the pairs of such a document and
      another one with the key, [P, 2].
    """
    order_N = np.argsort(key_N)
    key_N, document_N = key_N[order_N], document_N[order_N]
    start_K = np.flatnonzero(np.append(True, key_N[1:] != key_N[:-1])[: len(key_N)])
    if not len(start_K):
        return key_N, document_N, np.zeros((0, 2), np.int64)
    first_K = np.minimum.reduceat(document_N, start_K)
    first_N = np.repeat(first_K, np.diff(np.append(start_K, len(key_N))))
    is_other_N = first_N != document_N
    pair_Px2 = np.stack([first_N[is_other_N], document_N[is_other_N]], axis=1)
    return key_N[start_K], first_K, np.unique(pair_Px2, axis=0)


def join(cluster_D: np.ndarray, pair_Px2: np.ndarray) -> None:
    """Joins the clusters of pairs of documents, in place.

    Args:
      cluster_D: A document of the same cluster that is not later; the first document of a cluster
        has its own number.
    """
    while len(pair_Px2):
        pair_Px2 = _first_documents(cluster_D, pair_Px2)
        pair_Px2 = pair_Px2[pair_Px2[:, 0] != pair_Px2[:, 1]]
        # A cluster that is paired with several earlier ones joins the earliest of them. The next
        # iteration joins the others.
        np.minimum.at(cluster_D, pair_Px2.max(axis=1), pair_Px2.min(axis=1))


def _first_documents(cluster_D: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Returns the first document of each one's cluster; shortens the paths to it."""
    while True:
        parents = cluster_D[documents]
        firsts = cluster_D[parents]
        if np.array_equal(parents, firsts):
            return parents
        cluster_D[documents] = firsts


def flattened(cluster_D: np.ndarray) -> np.ndarray:
    """Returns the first document of each cluster."""
    while not np.array_equal(cluster_D, firsts_D := cluster_D[cluster_D]):
        cluster_D = firsts_D
    return cluster_D


def part_path(output: Directory, number: int) -> Directory:
    return output / TOKENIZED / f"{number:05d}"


def make_buckets(output: Directory, num_parts: int) -> dict[str, Any]:
    """Returns the content of buckets.json, from the results of the stage "tokenize".

    It has the index of the first document of each part and of the end, and the number of buckets.
    Beside it, bucket_starts.npy, [buckets + 1, parts], has the entries of the parts at which the
    buckets begin.
    """
    starts, lengths = [], []
    for number in range(num_parts):
        described = read_file(output, result_name("tokenize", number))["described"]
        starts.append(np.array(described["cell_starts"]))
        lengths.append(described["documents"])
    starts_PxC = np.stack(starts)
    cells = bucket_cells(int(starts_PxC[:, -1].sum()))
    _save(output, "bucket_starts.npy", np.ascontiguousarray(starts_PxC[:, cells].T))
    return {"first_documents": [0, *np.cumsum(lengths).tolist()], "num_buckets": len(cells) - 1}


def find_pairs(output: Directory, num_parts: int, number: int) -> None:
    """Writes the pairs of every `num_parts`-th bucket from `number` on, of all parts."""
    buckets = read_file(output, "buckets.json")
    starts_BxP = _load(output, "bucket_starts.npy")
    pairs = [np.zeros((0, 2), np.int64)]
    for bucket in range(number, buckets["num_buckets"], num_parts):
        start_P, stop_P = starts_BxP[bucket : bucket + 2]
        ranges = zip(range(num_parts), start_P.tolist(), stop_P.tolist(), strict=True)
        with ThreadPoolExecutor(_NUM_READERS) as pool:
            read = list(pool.map(lambda args: _read_keys(output, *args), ranges))
        documents = [
            entries["document"] + np.int64(first)
            for entries, first in zip(read, buckets["first_documents"], strict=False)
        ]
        keys = [entries["key"] for entries in read]
        pairs.append(linked(np.concatenate(keys), np.concatenate(documents))[2])
    _save(output, f"pairs-{number:05d}.npy", np.unique(np.concatenate(pairs), axis=0))


def _read_keys(output: Directory, part: int, start: int, stop: int) -> np.ndarray:
    return _read(part_path(output, part) / "keys.bin", start, stop, _ENTRY)


def _read(path: Directory, start: int, stop: int, dtype: np.dtype) -> np.ndarray:
    """Reads a range of a vector."""
    with files.open_input(path) as file:
        file.seek(start * dtype.itemsize)
        return np.frombuffer(file.read((stop - start) * dtype.itemsize), dtype)


def _load(output: Directory, name: str) -> np.ndarray:
    with files.open_input(output / UNFINISHED / name) as file:
        return np.load(file)


def _save(output: Directory, name: str, values: np.ndarray) -> None:
    with files.new_file(output / UNFINISHED / name) as file:
        np.save(file, values)


def pair_numbers(output: Directory, num_parts: int) -> range:
    """Returns the numbers for which `find_pairs` has work to do."""
    return range(min(num_parts, read_file(output, "buckets.json")["num_buckets"]))


def decide(output: Directory, num_parts: int) -> dict[str, Any]:
    """Writes fates.bin; returns the content of fates.json, which is empty."""
    firsts = read_file(output, "buckets.json")["first_documents"]
    cluster_D = np.arange(firsts[-1])
    is_heldout_D = np.zeros(firsts[-1], bool)
    for number, (first, stop) in enumerate(zip(firsts[:-1], firsts[1:], strict=True)):
        cluster_N, is_heldout_N = _load(output, f"tokenized/{number:05d}/clusters.npy")
        cluster_D[first:stop], is_heldout_D[first:stop] = cluster_N + first, is_heldout_N
    for number in pair_numbers(output, num_parts):
        join(cluster_D, _load(output, f"pairs-{number:05d}.npy"))
    cluster_D = flattened(cluster_D)
    fate_D = np.where(is_heldout_D[cluster_D], COPY_OF_HELDOUT, COPY).astype(np.uint8)
    fate_D[cluster_D == np.arange(len(cluster_D))] = KEPT
    files.write_whole(output / UNFINISHED / "fates.bin", fate_D.tobytes())
    return {}


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
    firsts = read_file(output, "buckets.json")["first_documents"]
    fate_D = _read(output / UNFINISHED / "fates.bin", *firsts[number : number + 2], np.dtype("u1"))
    row_DxF = np.load(part / "documents.npy", mmap_mode="r")
    stores = {name: Part(part / name) for name in result["splits"]}
    read: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    dropped = BadRecords("skip", "")
    for row_F, fate in zip(row_DxF, fate_D.tolist(), strict=True):
        row = DocumentRow(*row_F.tolist())
        name = SPLITS[row.is_heldout]
        store, index = stores[name], read[name]
        read[name] += 1
        if fate == KEPT:
            writers[name].copy(store, index, row.num_bytes)
            continue
        start, end = store.sentence_starts[store.document_starts[index : index + 2]].tolist()
        removed.update({f"{name}_documents": 1, f"{name}_tokens": end - start})
        removed["copies_of_heldout"] += fate == COPY_OF_HELDOUT and not row.is_heldout
        place = Place(result["described"]["sources"][row.source], row.line, row.start)
        dropped.add(BadRecord("duplicate", "the document is a copy of another one"), place)
    return {
        **{key: value for key, value in result.items() if key != "described"},
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
