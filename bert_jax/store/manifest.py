"""What a token store records: the config that it was made with, and the documents left out.

`texts` compares its texts with those of a config.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.data import DATA, SAMPLING
from bert_jax.config.schema import Owner
from bert_jax.text.named_sources import split_inputs
from bert_jax.tokenizers import Tokenizer
from bert_jax.tokenizers.extension import extended_size, is_number

# The keys that determine how the text trains or extends a vocabulary.
_OF_TRAINING = ("sentencepiece_type", *SAMPLING)
# The keys of `config.data` that a store records. `sources` is recorded as `input`.
RECORDED = tuple(
    key
    for key, field in DATA.items()
    if field.owner in (Owner.STORE, Owner.TOKENIZER) and key != "sources" or key in SAMPLING
)
# A vocabulary belongs to a cased model if a larger fraction of its pieces has upper-case letters.
_MAX_CASED_FRACTION = 0.05


def given_tokenizer(data: ConfigDict, vocab_size: int | None = None) -> Tokenizer:
    """Returns the tokenizer with the vocabulary of `data.vocab`."""
    try:
        tokenizer = tokenizers.from_file(data.tokenizer, data.vocab, **tokenizer_options(data))
    except (UserError, OSError) as error:
        raise UserError(f"config.data.vocab: {error}") from error
    size, added = tokenizer.vocab_size, ""
    if data.add_tokens:
        size = extended_size(tokenizer, data.add_tokens)
        added = f" with data.add_tokens={data.add_tokens}"
    if vocab_size not in (None, size):
        raise UserError(
            f"model.vocab_size is {vocab_size}, but the vocabulary {data.vocab} has {size} "
            f"tokens{added}: set model.vocab_size to {size}"
        )
    return tokenizer


def check_case(data: ConfigDict) -> None:
    """Refuses `data.lowercase` with the vocabulary of a cased model."""
    # Those in brackets are special, such as [CLS] and [unused1].
    tokens = [token for token in given_tokenizer(data).tokens if token[0] not in "[<"]
    fraction = sum(token != token.lower() for token in tokens) / max(len(tokens), 1)
    if data.lowercase and fraction > _MAX_CASED_FRACTION:
        raise UserError(
            f"config.data.lowercase is True, but {fraction:.0%} of the pieces in {data.vocab} have "
            "upper-case letters and would never be used; set it to False, or to True by a flag to "
            "lower-case the text all the same"
        )


def tokenizer_options(data: ConfigDict) -> dict[str, Any]:
    """Returns the arguments of `tokenizers.from_file` for the `data` section of a config."""
    return {
        "lowercase": data.lowercase,
        "max_input_chars_per_word": data.max_input_chars_per_word,
        "sentencepiece_rules": data.sentencepiece_rules,
        "add_prefix_space": data.add_prefix_space,
        "special_tokens": tokenizers.CONVENTIONS[data.special_tokens],
    }


def store_options(
    data: ConfigDict, vocab_size: int, known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the options that determine a store's content, besides the texts themselves.

    The vocabulary of `data.vocab` is identified by a hash of its content; its path is only
    recorded.

    Args:
      known: The options of a finished store. They supply the vocabulary's hash if its file no
        longer exists and its path is the same.
    """
    options: dict[str, Any] = {}
    for key in _recorded(data.tokenizer):
        if key == "vocab":
            options["vocab"] = _vocab_hash(data, known) if data.vocab else ""
            options |= {"vocab_path": data.vocab, "vocab_size": vocab_size}
        else:
            options[key] = list(data[key]) if isinstance(data[key], tuple) else data[key]
    options["input"] = split_inputs(data.sources or data.input)
    if not _depends_on_text(options):
        options = {key: value for key, value in options.items() if key not in _OF_TRAINING}
    return options


def _depends_on_text(options: Mapping[str, Any]) -> bool:
    """Returns whether the text determines tokens of a store with these options."""
    return not options["vocab"] or bool(options.get("add_tokens"))


def _vocab_hash(data: ConfigDict, known: Mapping[str, Any] | None) -> str:
    """Returns the hash of the files of `data.vocab` and `data.add_tokens`; see `store_options`."""
    try:
        path = files.checked_path(data.vocab, "data.vocab")
        parts = tokenizers.vocabulary_files(data.tokenizer, path)
        if data.add_tokens and not is_number(data.add_tokens):
            parts = [*parts, files.checked_path(data.add_tokens, "data.add_tokens")]
        content = b"\0".join(files.read_whole(part) for part in parts)
        return f"sha256:{hashlib.sha256(content).hexdigest()}"
    except OSError as error:
        paths = {"vocab_path": data.vocab, "add_tokens": data.add_tokens}
        if not known or any(known.get(key, "") != path for key, path in paths.items()):
            raise UserError(f"config.data.vocab: {error}") from None
        return known["vocab"]


def _recorded(tokenizer: str) -> list[str]:
    """Returns the keys that a store with this kind of tokenizer records."""

    def has_effect(key: str) -> bool:
        other, *values = DATA[key].only_with or ("",)
        return other != "data.tokenizer" or tokenizer in values

    return list(filter(has_effect, RECORDED))


def recorded_options(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a finished store; what an older one lacks has its default."""
    options = metadata["options"]
    omitted = {
        key: list(default) if isinstance(default := DATA[key].default, tuple) else default
        for key in _recorded(options["tokenizer"])
        if key not in _OF_TRAINING or _depends_on_text(options)
    }
    return omitted | options


def input_key(metadata: Mapping[str, Any]) -> str:
    """Returns the key of `config.data` that names the texts of a store: input or sources."""
    return "sources" if any(source.get("source") for source in metadata["sources"]) else "input"


def say_skipped(dropped: Mapping[str, int], first: Mapping[str, Sequence[str]]) -> None:
    """Warns of the documents that were skipped, in a sentence for each reason."""
    for reason, number in dropped.items():
        found = ", ".join(first[reason]) + (", ..." if number > len(first[reason]) else "")
        documents = "document" if number == 1 else "documents"
        say(f"warning: skipped {number:,} {documents}: {reason} ({found})")
