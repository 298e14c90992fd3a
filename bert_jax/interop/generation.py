"""How a model with a decoder generates text by default: generation_config.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.pretrained import Pretrained
from bert_jax.models.generation import Search
from bert_jax.tokenizers import Tokenizer

FILE = "generation_config.json"
_OPTIONS = tuple(field.name for field in dataclasses.fields(Search))
# Keys of GenerationConfig that change the tokens, and the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "force_words_ids": (),
    "constraints": (),
    "sequence_bias": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "exponential_decay_length_penalty": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0.0,),
    "penalty_alpha": (0.0,),
    "renormalize_logits": (False,),
    "remove_invalid_values": (False,),
    "guidance_scale": (1.0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "stop_strings": (),
    "watermarking_config": (),
    "token_healing": (False,),
    "dola_layers": (),
}
# A larger number is a mistake.
_MAX = 10_000


def read_generation(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the keys of GenerationConfig.

    Args:
      directory: A directory of `transformers`.
      config: Its config.json, which has the keys if there is no generation_config.json.
    """
    path = directory / FILE
    values = files.read_json(path) if path.exists() else config
    known = {*_OPTIONS, "max_length", *_NEUTRAL}
    return {key: value for key, value in values.items() if key in known and value is not None}


def generation_keys(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the keys of GenerationConfig for a model.

    They come from its files, or from the task that it was fine-tuned on.
    """
    keys = token_keys(pretrained.tokenizer) if pretrained.tokenizer else {}
    task = (pretrained.training.get("config") or {}).get("seq2seq")
    if task and not pretrained.generation:
        return keys | task_keys(task)
    return keys | pretrained.generation


def token_keys(tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the keys of GenerationConfig for special tokens.

    As in BART, the decoder begins with `sep_id`, which also ends a text.
    """
    names = ("decoder_start_token_id", "eos_token_id", "forced_eos_token_id")
    return dict.fromkeys(names, tokenizer.sep_id) | {"pad_token_id": tokenizer.pad_id}


def task_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of GenerationConfig that `config.seq2seq` sets."""
    names = ("num_beams", "length_penalty", "min_length", "no_repeat_ngram_size")
    return {name: options[name] for name in names} | {
        # In `transformers`, the decoder's first input counts.
        "max_length": options["max_target_length"] + 1
    }


def search_of(
    keys: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    model: Mapping[str, Any],
    default_max_new_tokens: int,
    source: str,
    names: Mapping[str, str] | None = None,
) -> Search:
    """Returns the settings of a search.

    Args:
      keys: From `generation_keys`.
      given: Options of `Search` that have precedence; None stands for no value.
      model: The keys of `config.model`.
      default_max_new_tokens: The largest number of tokens without a setting.
      source: The path of the model, for messages.
      names: For messages, the names of options that the user set by another name.

    Raises:
      UserError: A value is out of range, or a stored setting is not supported.
    """
    for key, neutral in _NEUTRAL.items():
        if key in keys and keys[key] not in neutral:
            raise UserError(
                f"{source} has {key}={keys[key]!r} in its generation config, which is not "
                f"supported; remove the key from {FILE} or config.json"
            )
    # A list with a single end means the same as this end alone.
    values = {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value
        for key, value in keys.items()
        if key in _OPTIONS
    }
    length = keys.get("max_length", default_max_new_tokens + 1)
    if type(length) is int:
        values.setdefault("max_new_tokens", length - 1)
    values |= {key: value for key, value in given.items() if value is not None}
    search = Search(**values)
    # A stored setting is named with its file.
    named = {name: name for name in _OPTIONS}
    named |= {name: f"{name} in {FILE} or config.json" for name in keys}
    if "max_length" in keys and "max_new_tokens" not in keys:
        named["max_new_tokens"] = f"max_length - 1 in {FILE} or config.json"
    named |= {name: name for name, value in given.items() if value is not None}
    _check(search, model, source, named | (names or {}))
    return search


def _check(search: Search, model: Mapping[str, Any], source: str, names: Mapping[str, str]) -> None:
    """Refuses values of a wrong type or out of range."""
    limits = {
        # The last token needs no position.
        "max_new_tokens": (1, model["max_position_embeddings"]),
        "num_beams": (1, _MAX),
        "min_length": (0, _MAX),
        "no_repeat_ngram_size": (0, _MAX),
    }
    ids = [name for name in _OPTIONS if name.endswith("_id")]
    limits |= {name: (0, model["vocab_size"] - 1) for name in ids}
    for name, (low, high) in limits.items():
        value = getattr(search, name)
        if value is None and name.startswith("forced"):
            continue
        if type(value) is not int or not low <= value <= high:
            raise UserError(
                f"{names[name]} is {value!r}; for {source} it must be from {low} to {high}"
            )
    # The decoder's first input counts in min_length.
    if search.min_length > search.max_new_tokens + 1:
        raise UserError(
            f"{names['min_length']} is {search.min_length}, but {names['max_new_tokens']} is "
            f"{search.max_new_tokens}; with these, min_length must be from 0 to "
            f"{search.max_new_tokens + 1}"
        )
    penalty = search.length_penalty
    if type(penalty) not in (int, float) or not -10 <= penalty <= 10:
        raise UserError(
            f"{names['length_penalty']} is {penalty!r}; it must be a number from -10 to 10"
        )
    if not isinstance(search.early_stopping, bool) and search.early_stopping != "never":
        raise UserError(
            f"{names['early_stopping']} is {search.early_stopping!r}; it must be True, False or "
            "'never'"
        )


def write_generation(pretrained: Pretrained, directory: Path) -> None:
    """Writes generation_config.json, with which `transformers` generates the same text.

    A model without settings of its own gets no `max_length`: `generate` of `transformers` then ends
    at its default of 20 tokens, that of bert_jax at about twice the given text.
    """
    files.write_json(directory / FILE, generation_keys(pretrained))
