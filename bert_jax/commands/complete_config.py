"""Completes the config of a pre-training run with what the owners of its keys determine."""

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.commands.read_model import read_model, read_teacher
from bert_jax.config.checks import check_rules, flag_rules
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.pretraining import PRETRAINING
from bert_jax.config.schema import Owner, flatten
from bert_jax.interop.pretrained import Pretrained
from bert_jax.pretraining.first_state import copied_vocabulary
from bert_jax.store.manifest import (
    check_case,
    input_key,
    recorded_options,
    store_options,
)
from bert_jax.store.token_store import read_metadata
from bert_jax.text.named_sources import join_inputs
from bert_jax.tokenizers.extension import extended_size
from bert_jax.training import workdir
from bert_jax.training.stages import stages_of_run

_WEIGHT_KEYS = frozenset(
    key for key, field in flatten(PRETRAINING) if field.owner in (Owner.WEIGHTS, Owner.TOKENIZER)
)


def complete_config(
    config: ConfigDict, directory: epath.PathLike, source: ConfigSource
) -> tuple[ConfigDict, Pretrained | None, Pretrained | None]:
    """Fills in the values that the initial weights, the teacher or a given token store determine.

    These owners of a key replace the value of the config file; see `Owner`. A store comes last: its
    vocabulary may extend that of the weights.

    Returns:
      The completed config, the model of `config.init_from` if the run begins with it, and the
      teacher if it has one.
    """
    # The owned values by key, and what owns each, with a verb: "the weights of PATH have".
    pretrained, values, owners = None, {}, {}

    def own(owner: str, owned: Mapping[str, Any]) -> None:
        values.update(owned)
        owners.update(dict.fromkeys(owned, owner))

    teacher = read_teacher(config)
    if config.init_from and workdir.has_checkpoints(directory):
        # The run continues without the initial weights, which may no longer exist.
        stored = config_lib.flatten(workdir.load_config(directory))
        # The store compares another path of the same vocabulary by its content.
        keys = _WEIGHT_KEYS - ({"data.vocab"} & source.flags)
        own(f"the run in {directory} has", {k: v for k, v in stored if k in keys})
    elif config.init_from:
        pretrained = read_model(config.init_from)
        owned = _of_weights(config, directory, source.flags, pretrained)
        own(f"the weights of {config.init_from} have", owned)
    elif teacher:
        owned = _of_weights(config, directory, source.flags, teacher)
        is_vocabulary = re.compile(r"data\..*|model\.vocab_size").fullmatch
        own(
            f"the teacher {teacher.source} has",
            {k: v for k, v in owned.items() if is_vocabulary(k)},
        )
    if config.data.store:
        path = workdir.store_directory(directory, config)
        owned = _of_store(config, source.flags, read_metadata(path))
        own(f"the token store {path} was made with", owned)
    ours = dict(config_lib.flatten(config_lib.to_dict(config)))
    for key, value in sorted(config_lib.to_dict(values).items()):
        if key in source.flags and ours[key] != value:
            text = shlex.quote(",".join(value) if isinstance(value, list) else str(value))
            raise UserError(
                f"config.{key} is {ours[key]!r}, but {owners[key]} {value!r}: set "
                f"--config.{key}={text}"
            )
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.update_from_flattened_dict(values)
        if not any(re.fullmatch(r"train\.stages(.*fraction)?", key) for key in source.flags):
            config.train.stages = _stages(config, directory)
    config_lib.validate(config)
    check_rules(flag_rules(config, source.flags), config)
    is_prepared = (workdir.store_directory(directory, config) / "metadata.json").exists()
    if config.data.vocab and not is_prepared and "data.lowercase" not in {*source.flags, *values}:
        check_case(config.data)
    return config, pretrained, teacher


def _stages(config: ConfigDict, directory: epath.PathLike) -> tuple[ConfigDict, ...]:
    """Returns the stages of the config or, if it continues a run, with the steps of that run."""
    earlier = directory if workdir.has_checkpoints(directory) else config.resume_from
    # `training.start.check` refuses a run of fine-tuning.
    if not earlier or not workdir.has_checkpoints(earlier) or workdir.holds_finetuning(earlier):
        return config.train.stages
    return stages_of_run(workdir.load_config(earlier), config)


def _of_store(
    config: ConfigDict, flags: Collection[str], metadata: dict[str, Any]
) -> dict[str, Any]:
    """Finds the keys and values that a given token store determines.

    The texts and `data.vocab` are left out if flags name the store's own texts or vocabulary under
    another path.
    """
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recorded_options(metadata).items()
    }
    texts = input_key(metadata)
    other = "sources" if texts == "input" else "input"
    names = [key for key in options if key in config.data and key not in ("input", "vocab")]
    values = {f"data.{key}": options[key] for key in names}
    data = config.data.copy_and_resolve_references()
    data.update({key: options[key] for key in names})
    data[other] = values[f"data.{other}"] = ()
    values["model.vocab_size"] = size = metadata["vocab_size"]
    values[f"data.{texts}"] = tuple(join_inputs([item]) for item in options["input"])
    values["data.vocab"] = options["vocab_path"]
    if f"data.{texts}" in flags:
        from bert_jax.store.texts import input_difference

        if not input_difference(metadata, data):
            del values[f"data.{texts}"]
    if "data.vocab" in flags and store_options(data, size, options)["vocab"] == options["vocab"]:
        del values["data.vocab"]
    return values


def _of_weights(
    config: ConfigDict, directory: epath.PathLike, flags: Collection[str], pretrained: Pretrained
) -> dict[str, Any]:
    tokenizer = pretrained.tokenizer
    values = {f"model.{key}": value for key, value in pretrained.model.items()}
    if "family" not in flags:
        # The family only names the format of exports, so the user may choose another.
        values["family"] = pretrained.family
    if config.data.add_tokens and tokenizer and not config.data.store:
        values["model.vocab_size"] = extended_size(tokenizer, config.data.add_tokens)
    if tokenizer and not config.data.store:
        values |= {f"data.{key}": value for key, value in tokenizer.config_keys.items()}
        if "data.vocab" not in flags:
            # `checks.check` compares another path of the same vocabulary by its content.
            values["data.vocab"] = copied_vocabulary(directory)
    return {key: value for key, value in values.items() if key in _WEIGHT_KEYS}
