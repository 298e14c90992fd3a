"""Compares the manifest of a token store on disk with a config."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from bert_jax import files, tokenizers
from bert_jax.data.corpus import TFDS_PREFIX, Corpus, split_inputs
from bert_jax.data.store import read_metadata
from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer


def open_corpus(data: ConfigDict) -> Corpus:
    """Opens the corpus of the `data` section of a config."""
    return Corpus(
        data.input,
        format=data.format,
        text_field=data.text_field,
        bad_documents=data.bad_documents,
    )


def given_tokenizer(data: ConfigDict, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer with the vocabulary of `data.vocab`.

    Raises:
      UserError: The file cannot be used, or does not have `vocab_size` entries.
    """
    tokenizer = tokenizers.from_file(
        data.tokenizer,
        data.vocab,
        lowercase=data.lowercase,
        max_input_chars_per_word=data.max_input_chars_per_word,
    )
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"model.vocab_size is {vocab_size}, but the vocabulary {data.vocab} has "
            f"{tokenizer.vocab_size} entries: set model.vocab_size to that"
        )
    return tokenizer


def store_options(data: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """Returns everything that determines a store's content, except for the texts themselves.

    A given vocabulary is identified by a hash of its content; its path is only recorded.

    Raises:
      UserError: The given vocabulary cannot be read.
    """
    options = {
        "input": split_inputs(data.input),
        "format": data.format,
        "text_field": data.text_field,
        "tokenizer": data.tokenizer,
        "vocab": _file_hash(data.vocab) if data.vocab else "",
        "vocab_path": data.vocab,
        "vocab_size": vocab_size,
        "lowercase": data.lowercase,
        "bad_documents": data.bad_documents,
        "heldout_fraction": data.heldout_fraction,
    }
    if data.tokenizer == "wordpiece":
        options["max_input_chars_per_word"] = data.max_input_chars_per_word
    elif not data.vocab:
        options["sentencepiece_type"] = data.sentencepiece_type
    return options


def check_store(output: str | os.PathLike, data: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """Returns the metadata of the finished store at `output`, if it matches the config.

    The input is compared by its files and their sizes. If these files no longer exist,
    `data.input` itself is compared, because training does not need the texts. A given
    vocabulary whose file no longer exists is compared by its path.

    Raises:
      UserError: There is no finished store, or it has other texts or options; the message names
        the difference.
    """
    metadata = read_metadata(output)
    found = metadata["options"]
    wanted = wanted_options(found, data, vocab_size)
    for key in sorted((found.keys() | wanted.keys()) - {"input", "vocab_path"}):
        if found.get(key) != wanted.get(key):
            name = "model.vocab_size" if key == "vocab_size" else f"data.{key}"
            raise UserError(
                f"the token store {output} was made with {name}={found.get(key)!r}, "
                f"not {wanted.get(key)!r}: use another directory or that value"
            )
    difference = source_difference(metadata, data, lambda: open_corpus(data).sources)
    if difference:
        raise UserError(
            f"the token store {output} was made of other texts ({difference}): "
            "use another directory or the same data.input"
        )
    return metadata


def wanted_options(found: dict[str, Any], data: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """Returns `store_options`, with the recorded hash if the vocabulary's file is missing."""
    is_missing = data.vocab and not files.open_path(data.vocab, "data.vocab").exists()
    if is_missing and found.get("vocab") and found.get("vocab_path") == data.vocab:
        without = ConfigDict({**data, "vocab": ""})
        return store_options(without, vocab_size) | {"vocab": found["vocab"]}
    return store_options(data, vocab_size)


def source_difference(
    metadata: dict[str, Any], data: ConfigDict, sources: Callable[[], list[dict[str, Any]]]
) -> str:
    """Describes how the sources differ from those of the store; empty if they do not.

    `sources` lists the present sources. If it fails because files are missing, `data.input`
    itself is compared.
    """
    try:
        wanted = _states(sources())
    except UserError:
        then, now = metadata["options"]["input"], split_inputs(data.input)
        return "" if then == now else f"data.input was {','.join(then)}, now {','.join(now)}"
    found = _states(metadata["sources"])
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            return f"{name} is new"
        if name not in wanted:
            return f"{name} is no longer among them"
        if found[name] != wanted[name]:
            return f"{name} had {found[name]}, now {wanted[name]}"
    return ""


def _states(sources: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the name of each source with its size or version in words."""
    return {
        s["path"] if "path" in s else f"{TFDS_PREFIX}{s['tfds']}:{s['field']}": (
            f"{s['bytes']} bytes" if "path" in s else f"version {s['version']}"
        )
        for s in sources
    }


def _file_hash(path: str) -> str:
    try:
        content = files.open_path(path, "data.vocab").read_bytes()
    except OSError as e:
        raise UserError(f"data.vocab: cannot read {path}: {e.strerror or 'no such file'}") from None
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
