"""Completes and prints the config of a pre-training run."""

import json
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import files, tokenizers, workdir
from bert_jax.command_line import ConfigSource
from bert_jax.config.tokenizer import TOKENIZER
from bert_jax.data.corpus import join_inputs
from bert_jax.data.store import read_metadata
from bert_jax.data.store_manifest import (
    check_case,
    given_tokenizer,
    recorded_options,
    tokenizer_flags,
)
from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.model_keys import TRAINING_ONLY
from bert_jax.interop.pretrained import Pretrained
from bert_jax.parallel import multihost
from bert_jax.progress import say


def complete(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource
) -> tuple[ConfigDict, Pretrained | None]:
    """Fills in the values that the initial weights or a given token store determine.

    The weights determine the model, its family, the tokenizer and the vocabulary. A store
    determines the tokenizer and the keys of the text. Flags take precedence, except over the
    store's text, because the run trains on that text in any case.

    Returns:
      The completed config, and the model of `config.init_from` if the run begins with it.

    Raises:
      UserError: The store or the weights cannot be read, or a value is out of range.
    """
    pretrained, values, text = None, {}, {}
    if config.init_from and workdir.has_checkpoints(directory):
        # The run continues without the initial weights, which may no longer exist.
        stored = config_lib.flatten(workdir.load_config(directory))
        values = {key: value for key, value in stored if _is_of_weights(key)}
    elif config.init_from:
        pretrained = formats.read(config.init_from)
        pretrained.fit_vocabulary()
        values = _of_weights(config, directory, pretrained)
    if config.data.store:
        metadata = read_metadata(workdir.store_directory(directory, config))
        options = recorded_options(metadata)
        values |= {"model.vocab_size": metadata["vocab_size"], **tokenizer_flags(options)}
        text = {f"data.{key}": value for key, value in options.items() if key in config.data}
        text["data.input"] = tuple(join_inputs([item]) for item in options["input"])
        text["data.vocab"] = options["vocab_path"]
        text = {key: value for key, value in text.items() if key not in values}
    values = {key: value for key, value in values.items() if key not in source.flags} | text
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.update_from_flattened_dict(values)
    config_lib.validate(config)
    is_prepared = (workdir.store_directory(directory, config) / "metadata.json").exists()
    if config.data.vocab and not is_prepared and "data.lowercase" not in {*source.flags, *values}:
        check_case(config.data)
    return config, pretrained


def _is_of_weights(key: str) -> bool:
    """Returns whether initial weights determine a key."""
    section, _, name = key.partition(".")
    of_model = section == "model" and name not in TRAINING_ONLY
    return of_model or (section == "data" and name in TOKENIZER) or key == "family"


def _of_weights(
    config: ConfigDict, directory: epath.PathLike, pretrained: Pretrained
) -> dict[str, Any]:
    """Returns the keys and values that the initial weights determine."""
    values = {f"model.{key}": value for key, value in pretrained.model.items()}
    values["family"] = pretrained.family
    if pretrained.tokenizer and not config.data.store:
        for key, value in pretrained.tokenizer.config_keys.items():
            # A family from outside the package may have special tokens without a name.
            if not isinstance(value, list):
                values[f"data.{key}"] = value
        if not config.data.vocab:
            values["data.vocab"] = _vocabulary(config, directory, pretrained, values)
    return {key: value for key, value in values.items() if _is_of_weights(key)}


def _vocabulary(
    config: ConfigDict, directory: epath.PathLike, pretrained: Pretrained, values: dict[str, Any]
) -> str:
    """Returns the path of the vocabulary of initial weights.

    If the files beside the weights are of another format, it is a copy in the work directory,
    which `initialize.check` writes.
    """
    tokenizer = pretrained.tokenizer
    source = files.open_path(config.init_from, "config.init_from")
    # The vocabulary is beside the weights, beside the prefix of a checkpoint, or in the WORKDIR
    # of a step.
    folders = (source, source / "tokenizer", source.parent, source.parent.parent / "tokenizer")
    for folder in folders:
        path = tokenizers.vocabulary_files(tokenizer.kind, folder)[0]
        if path.is_file():
            data = config.data.copy_and_resolve_references()
            data.update({k.removeprefix("data."): v for k, v in values.items() if k[:5] == "data."})
            data.vocab = str(path)
            try:
                if given_tokenizer(data).fingerprint == tokenizer.fingerprint:
                    return str(path)
            except UserError:
                continue
    return str(epath.Path(directory) / workdir.INITIAL_VOCABULARY)


def differences(config: ConfigDict, source: ConfigSource) -> dict[str, tuple[Any, Any]]:
    """Returns the keys whose values differ from those of the config file, with both values."""
    return config_lib.differences(config_lib.to_dict(source.values), config_lib.to_dict(config))


def describe(config: ConfigDict, source: ConfigSource) -> None:
    """Prints the config, one line per section, and its differences from the config file.

    Only process 0 prints.
    """
    if not multihost.is_first():
        return
    sections: dict[str, list[str]] = {}
    for key, value in config_lib.flatten(config_lib.to_dict(config)):
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name}={json.dumps(value)}")
    for section, values in sections.items():
        say(f"config{'.' if section else ''}{section}: {' '.join(values)}")
    for key, (before, now) in differences(config, source).items():
        say(f"config.{key} is {json.dumps(now)}, not {json.dumps(before)} as in {source.name}")
