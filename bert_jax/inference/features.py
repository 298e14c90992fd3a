"""Computes the features of a file of texts, a window at a time.

A window of texts is read and tokenized, its features are computed in batches of similar length, and
they are written in the order of the file. The window bounds the memory, however large the file is.
"""

import itertools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.inference.bert import Bert, Text
from bert_jax.inference.verbs import read_examples, texts_of
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.tokenizers import TokenRow

# The limits of a window, of which the second counts every text with the longest length.
_WINDOW_TEXTS = 4096
_WINDOW_BYTES = 2**28
SUFFIXES = (".npz", ".jsonl")
# As written by extract_features.py of google-research/bert.
_DECIMALS = 6


def count_texts(
    bert: Bert, source: str | os.PathLike, text_columns: Sequence[str] = ()
) -> int | None:
    """Counts the texts of a file and checks every line, before hours of computation.

    Returns:
      The number; None if `source` is a pipe or another file that can be read only once.
    """
    if not files.checked_path(source, "--input").is_file():
        return None
    return sum(1 for _ in _texts(bert, source, text_columns))


def write_features(
    bert: Bert,
    source: str | os.PathLike,
    output: str | os.PathLike,
    *,
    layers: tuple[int, ...],
    embedding: Embedding,
    text_columns: Sequence[str] = (),
    advance: Callable[[int], None] = lambda texts: None,
) -> int:
    """Writes the features of every line of a file, in the same order.

    Texts that are cut are counted in a warning.

    Args:
      source: A file of `text` and optionally `text_b`; see `read_examples`.
      output: FILE.jsonl or FILE.npz, which appears once it is complete. FILE.jsonl has a
        line with `features` for each text, rounded to six decimals; with "tokens", `features` has
        a list for each token, and the line also has `tokens`. FILE.npz has `features` float32
        [N, D]; with "tokens" [T, D] for the T tokens of all texts, their `input_ids` int32 [T], and
        the `offsets` int64 [N + 1] at which texts begin. Several layers add an axis before D.
    """
    files.check_output(output, SUFFIXES, source)
    chosen = bert.layers(layers)
    vector = (len(chosen), bert.width(embedding))[len(chosen) == 1 :]
    vectors = embedding.max_length if embedding.pooling == "tokens" else 1
    size = min(_WINDOW_TEXTS, max(1, _WINDOW_BYTES // (4 * math.prod(vector) * vectors)))
    texts, num_texts, num_cut, first_cut = _texts(bert, source, text_columns), 0, 0, ""
    with files.new_file(output) as stream:
        writer = _WRITERS[Path(output).suffix](stream, bert, vector, embedding.pooling)
        while window := list(itertools.islice(texts, size)):
            names, several = zip(*window, strict=True)
            rows = bert.tokenize_embedded(several, embedding)
            if not num_texts:
                bert.warn_about_unknown(rows)
            features = bert.features(rows, chosen, embedding)
            for row, x in zip(rows, features, strict=True):
                writer.write(row, x[..., 0, :] if len(chosen) == 1 else x)
            cut = [name for name, row in zip(names, rows, strict=True) if row.num_cut]
            first_cut = first_cut or next(iter(cut), "")
            num_texts, num_cut = num_texts + len(rows), num_cut + len(cut)
            advance(len(rows))
        writer.finish()
    if num_cut:
        count = f"{num_cut:,} of {num_texts:,} texts are truncated to {embedding.max_length}"
        warnings.warn(f"{count} tokens; the first is {first_cut}", stacklevel=2)
    return num_texts


def _texts(
    bert: Bert, source: str | os.PathLike, text_columns: Sequence[str]
) -> Iterator[tuple[str, Text]]:
    """Yields FILE:LINE and each text; see `write_features`."""
    for where, example in read_examples("features", source):
        try:
            (text,) = texts_of(bert, [example], text_columns)
            if isinstance(text, tuple):
                bert.require_segments()
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        yield where, text


class _JsonlWriter:
    def __init__(self, stream: BinaryIO, bert: Bert, vector: tuple[int, ...], pooling: str):
        self._stream = stream
        self._tokenizer = bert.tokenizer if pooling == "tokens" else None

    def write(self, row: TokenRow, features: np.ndarray) -> None:
        values = {}
        if self._tokenizer:
            values["tokens"] = [self._tokenizer.id_to_token(i) for i in row.input_ids_L]
        values["features"] = np.round(features.astype(np.float64), _DECIMALS).tolist()
        self._stream.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")

    def finish(self) -> None:
        pass


class _NpzWriter:
    """Writes arrays. Their shapes come first in the file, so scratch files hold the values."""

    def __init__(self, stream: BinaryIO, bert: Bert, vector: tuple[int, ...], pooling: str):
        self._stream = stream
        self._arrays = {"features": (np.dtype(np.float32), vector)}
        if pooling == "tokens":
            self._arrays["input_ids"] = (np.dtype(np.int32), ())
            self._arrays["offsets"] = (np.dtype(np.int64), ())
        # Scratch files are deleted with the process. They are on the same disk as the output.
        folder = Path(stream.name).parent
        self._scratch = {name: tempfile.TemporaryFile(dir=folder) for name in self._arrays}
        self._num_tokens = 0
        self._add("offsets", np.int64(0))

    def write(self, row: TokenRow, features: np.ndarray) -> None:
        self._num_tokens += len(row.input_ids_L)
        self._add("features", features)
        self._add("input_ids", row.input_ids_L)
        self._add("offsets", np.int64(self._num_tokens))

    def finish(self) -> None:
        arrays = {}
        for name, (dtype, shape) in self._arrays.items():
            self._scratch[name].flush()
            arrays[name] = np.memmap(self._scratch[name], dtype, "r").reshape(-1, *shape)
        np.savez(self._stream, **arrays)
        for scratch in self._scratch.values():
            scratch.close()

    def _add(self, name: str, values: np.ndarray | np.generic) -> None:
        if name in self._scratch:
            self._scratch[name].write(values.tobytes())


_WRITERS = {".npz": _NpzWriter, ".jsonl": _JsonlWriter}
