"""The texts of a token store, compared with those that a config names."""

import os
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.store.manifest import input_key, recorded_options, store_options
from bert_jax.text.corpus import Corpus
from bert_jax.text.named_sources import join_inputs, split_inputs
from bert_jax.text.sources import TFDS_PREFIX, Source, find_named_sources, source_name
from bert_jax.tokenizers.extension import is_number


def open_corpus(data: ConfigDict, sources: list[Source] | None = None) -> Corpus:
    """Opens the corpus of the `data` section of a config; see `Corpus`."""
    if sources is None and data.sources:
        sources = find_named_sources(data.sources, data.text_field)
    return Corpus(
        data.input,
        format=data.format,
        text_field=data.text_field,
        document_field=data.document_field,
        table_rows=data.table_rows,
        characters_apart=data.characters_apart,
        encoding=data.encoding,
        bad_documents=data.bad_documents,
        sources=sources,
    )


def check_metadata(
    metadata: Mapping[str, Any], output: str | os.PathLike, data: ConfigDict, vocab_size: int
) -> None:
    """Checks that the store with this metadata, at `output`, matches the config.

    The input is compared by the names and sizes of its files, which may have moved to another
    directory. If these files no longer exist, the value of the key is compared, because training
    does not need the texts. A vocabulary and a file of added words are compared by their content
    or, if they no longer exist, by their paths.
    """
    found = recorded_options(metadata)
    wanted = recorded_options({"options": store_options(data, vocab_size, known=found)})
    for options in (found, wanted):
        if not is_number(options.get("add_tokens", "")):
            # The hash of the vocabulary covers a file of words.
            options["add_tokens"] = ""
    # A store of an older version may have keys that are gone.
    keys = wanted.keys() - {"input", "vocab_path"}
    # Which keys there are depends on whether a vocabulary is given.
    for key in sorted(keys, key=lambda key: (key != "vocab", key)):
        if found.get(key) != wanted.get(key):
            name = "model.vocab_size" if key == "vocab_size" else f"data.{key}"
            raise UserError(
                f"the token store {output} was made with {name}={found.get(key)!r}, "
                f"not {wanted.get(key)!r}: use another directory or the store's value"
            )
    if difference := input_difference(metadata, data):
        raise UserError(
            f"the token store {output} was made from other texts ({difference}): "
            f"use another directory or the same data.{input_key(metadata)}"
        )


def input_difference(metadata: Mapping[str, Any], data: ConfigDict) -> str:
    """Returns how the texts of a store differ from those of `data.input`; empty if they do not.

    See `check_metadata`.
    """
    try:
        sources = open_corpus(data).sources
    except UserError:
        key, found = input_key(metadata), metadata["options"]["input"]
        is_same = found == split_inputs(data.sources or data.input)
        return "" if is_same else f"data.{key} was {join_inputs(found)}"
    before, now = source_states(metadata["sources"]), source_states(sources)
    if _without_directories(before) == _without_directories(now):
        return ""
    differing = (name for name in sorted(before | now) if before.get(name) != now.get(name))
    name = next(differing)
    return f"{name} was {before.get(name, 'missing')}, is {now.get(name, 'missing')}"


def source_states(sources: list[dict[str, Any]]) -> dict[str, str]:
    """Maps the name of each file or data set to its size or version, and its source, as text."""
    return {
        s["path"] if "path" in s else f"{TFDS_PREFIX}{s['tfds']}:{s['field']}": (
            f"{s['bytes']} bytes" if "path" in s else f"version {s['version']}"
        )
        + (f" in {source_name(s)}" if source_name(s) else "")
        for s in sources
    }


def _without_directories(states: dict[str, str]) -> list[tuple[str, str]]:
    return sorted((os.path.basename(name), state) for name, state in states.items())
