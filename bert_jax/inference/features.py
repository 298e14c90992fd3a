"""Computes the features of a file of texts, a window at a time.

A window of texts is read and tokenized, its features are computed in batches of similar length, and
they are written in the order of the file. The window bounds the memory, however large the file is.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.heads.verb import texts_of
from bert_jax.inference.bert import Bert
from bert_jax.inference.verbs import read_examples
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks.vectors import by_token, weights_of
from bert_jax.tokenizers import Tokenizer, TokenRow
from bert_jax.tokenizers.given_texts import Text

# The limits of a window, of which the second counts every text with the longest length.
_WINDOW_TEXTS = 4096
_WINDOW_BYTES = 2**28
SUFFIXES = (".npz", ".jsonl")
# With these, `scipy.sparse.load_npz` reads a file as an array in CSR, not as a matrix.
_CSR_MARKS = {"format": np.array(b"csr"), "_is_array": np.array(True)}
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
        For a sparse model, `features` in FILE.jsonl has the weights by token, the largest first,
        and `scipy.sparse.load_npz` reads FILE.npz. For a multi-vector model, `features` in
        FILE.jsonl has a list for each vector, and FILE.npz has the `vectors` float32 [T, W] of all
        texts and the `starts` int64 [N + 1] at which those of each text begin.
    """
    files.check_output(output, SUFFIXES, source)
    chosen, kind = bert.layers(layers), embedding.kind
    vector = (len(chosen), bert.width(embedding))[len(chosen) == 1 :]
    # In CSR, a weight is stored with the index of its token.
    vectors = 2 if kind == "sparse" else 1
    if embedding.pooling == "tokens":
        vectors = max(embedding.max_length, embedding.query_length or 0)
    size = min(_WINDOW_TEXTS, max(1, _WINDOW_BYTES // (4 * math.prod(vector) * vectors)))
    num_texts, num_cut, first_cut = 0, 0, ""

    def computed() -> Iterator[tuple[TokenRow, Any]]:
        nonlocal num_texts, num_cut, first_cut
        texts = _texts(bert, source, text_columns)
        while window := list(itertools.islice(texts, size)):
            names, several = zip(*window, strict=True)
            rows = bert.embedding_rows(several, embedding, warns=False)
            if not num_texts:
                bert.warn_about_unknown(rows)
            features = bert.features(rows, chosen, embedding)
            if kind == "sparse":
                features = weights_of(features)
            for row, x in zip(rows, features, strict=True):
                yield row, x[..., 0, :] if kind == "dense" and len(chosen) == 1 else x
            cut = [name for name, row in zip(names, rows, strict=True) if row.num_cut]
            first_cut = first_cut or next(iter(cut), "")
            num_texts, num_cut = num_texts + len(rows), num_cut + len(cut)
            advance(len(rows))

    with files.new_file(output) as stream:
        if Path(output).suffix == ".npz":
            _write_npz(stream, computed(), vector, embedding)
        else:
            _write_jsonl(stream, computed(), bert.tokenizer, embedding)
    if num_cut:
        count = f"{num_cut:,} of {num_texts:,} texts are truncated to {embedding.max_length}"
        warnings.warn(f"{count} tokens; the first is {first_cut}", stacklevel=2)
    return num_texts


def _texts(
    bert: Bert, source: str | os.PathLike, text_columns: Sequence[str]
) -> Iterator[tuple[str, Text]]:
    for where, example in read_examples(source):
        try:
            (text,) = texts_of(bert, [example], text_columns)
            if isinstance(text, tuple):
                bert.require_segments()
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        yield where, text


def _write_jsonl(
    stream: BinaryIO,
    found: Iterable[tuple[TokenRow, Any]],
    tokenizer: Tokenizer,
    embedding: Embedding,
) -> None:
    """Writes a line for each text."""
    for row, features in found:
        values = {}
        if embedding.kind == "dense" and embedding.pooling == "tokens":
            values["tokens"] = [tokenizer.id_to_token(i) for i in row.input_ids_L]
        if embedding.kind == "sparse":
            weights = by_token(tokenizer, *features)
            values["features"] = {token: round(weight, _DECIMALS) for token, weight in weights}
        else:
            values["features"] = np.round(features.astype(np.float64), _DECIMALS).tolist()
        stream.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")


def _write_npz(
    stream: BinaryIO,
    found: Iterable[tuple[TokenRow, Any]],
    vector: tuple[int, ...],
    embedding: Embedding,
) -> None:
    """Writes arrays. Their shapes come first in the file, so scratch files hold the values."""
    types, starts = {"features": (np.float32, vector)}, ""
    has_ids = embedding.kind == "dense" and embedding.pooling == "tokens"
    if embedding.kind == "sparse":
        types, starts = {"data": (np.float32, ()), "indices": (np.int32, ())}, "indptr"
    elif embedding.kind == "multi_vector":
        types, starts = {"vectors": (np.float32, vector)}, "starts"
    elif has_ids:
        types, starts = types | {"input_ids": (np.int32, ())}, "offsets"
    if starts:
        types[starts] = np.int64, ()
    with contextlib.ExitStack() as stack:
        # Scratch files are deleted with the process. They are on the same disk as the output.
        new_file = functools.partial(tempfile.TemporaryFile, dir=Path(stream.name).parent)
        scratch = {name: stack.enter_context(new_file()) for name in types}
        num_rows = np.int64(0)
        for row, features in found:
            values = [*features] if embedding.kind == "sparse" else [features]
            if has_ids:
                values.append(row.input_ids_L)
            if starts:
                values.append(num_rows)
                num_rows += len(values[0])
            for (name, (dtype, _)), value in zip(types.items(), values, strict=True):
                scratch[name].write(np.asarray(value, dtype).tobytes())
        if starts:
            scratch[starts].write(num_rows.tobytes())
        arrays = {}
        for name, (dtype, shape) in types.items():
            # An empty file cannot be mapped.
            size = scratch[name].tell()
            scratch[name].flush()
            values = np.memmap(scratch[name], dtype, "r") if size else np.zeros(0, dtype)
            arrays[name] = values.reshape(-1, *shape)
        if embedding.kind == "sparse":
            arrays |= _CSR_MARKS | {"shape": (len(arrays[starts]) - 1, *vector)}
        np.savez(stream, **arrays)
