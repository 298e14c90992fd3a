"""Reads and writes the tokenizer files of Hugging Face and of Google's original.

A tokenizer keeps its fingerprint in any chain of conversions. OPTIONS_FILE, a small file beside
those of the other program, holds what they cannot express: the lower-casing of a vocab.txt, and
all options of SentencePiece.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax import tokenizers
from bert_jax.errors import UserError, naming
from bert_jax.interop.tokenizer_json import to_library
from bert_jax.tokenizers import SPECIAL_TOKENS, Tokenizer
from bert_jax.tokenizers.base import require_special_tokens
from bert_jax.tokenizers.sentencepiece import MODEL_FILE
from bert_jax.tokenizers.wordpiece import VOCABULARY_FILE, WordPieceTokenizer, read_vocabulary

OPTIONS_FILE = "bert_jax_tokenizer.json"
LIBRARY_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIALS_FILE = "special_tokens_map.json"
ADDED_FILE = "added_tokens.json"
# Longer words are [UNK] in the original and in `transformers`; a vocab.txt cannot change that.
_GOOGLE_WORD, _HUGGINGFACE_WORD = 200, 100
# [CLS], [unused1], and <S> in the (uncased) Chinese vocabulary.
_IN_BRACKETS = re.compile(r"\[.+\]|<.+>").fullmatch
_UNFIT_FOR_A_LINE = re.compile(r"$|.*([\n\ud800-\udfff]|\r\Z)", re.DOTALL).match


def write_huggingface_tokenizer(
    tokenizer: Tokenizer, directory: str | Path, model_max_length: int
) -> None:
    """Writes a directory for `transformers.AutoTokenizer.from_pretrained`.

    It gives the same ids for the same text; `tokenizer_json` lists the exceptions, such as
    "[MASK]" in the text. WordPiece becomes a `BertTokenizer`. Its slow version, and both versions
    in `transformers` 5, turn words over 100 characters into [UNK], even if ours has another
    limit. SentencePiece becomes a `PreTrainedTokenizerFast`.

    Args:
      tokenizer: The tokenizer.
      directory: Created if it does not exist.
      model_max_length: The longest sequence of the model, with special tokens.

    Raises:
      UserError: A SentencePiece model has features that Hugging Face's format lacks.
    """
    directory = Path(directory)
    library = to_library(tokenizer)
    directory.mkdir(parents=True, exist_ok=True)
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS, strict=True))
    special_tokens = {f"{name}_token": token for name, token in names.items()}
    config: dict[str, Any] = {
        "added_tokens_decoder": {
            str(i): _added_token(token)
            for i, token in sorted(zip(tokenizer.special_ids, SPECIAL_TOKENS, strict=True))
        },
        "model_max_length": model_max_length,
        **special_tokens,
    }
    if tokenizer.kind == "wordpiece":
        tokenizer.save_vocabulary(directory)
        config |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": tokenizer.options["lowercase"],
            "do_basic_tokenize": True,
            "never_split": None,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            "clean_up_tokenization_spaces": True,
        }
    else:
        tokenizer.save(directory, OPTIONS_FILE)
        config |= {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
    _write_text(directory / LIBRARY_FILE, library.to_str(pretty=True) + "\n")
    _write_json(directory / CONFIG_FILE, config)
    _write_json(directory / SPECIALS_FILE, special_tokens)


def read_huggingface_tokenizer(directory: str | Path) -> Tokenizer | None:
    """Reads the tokenizer of a directory of `transformers`; None if it has none.

    Raises:
      UserError: Its files are damaged, or its rules are not BERT's.
    """
    directory = Path(directory)
    if (directory / OPTIONS_FILE).exists():
        return tokenizers.load(directory, OPTIONS_FILE)
    config_path = directory / CONFIG_FILE
    config = _read_json(config_path) if config_path.exists() else {}
    if config.get("strip_accents") is not None:
        lowercase = config.get("do_lower_case", True)
        _require(config["strip_accents"] == lowercase, config_path, _STRIP_ACCENTS)
    _require(config.get("tokenize_chinese_chars", True), config_path, _CHINESE)
    _require(config.get("do_basic_tokenize", True), config_path, "do_basic_tokenize must be true")
    if (directory / LIBRARY_FILE).exists():
        tokenizer = _read_library_file(directory / LIBRARY_FILE)
        ours, theirs = tokenizer.options["lowercase"], config.get("do_lower_case")
        agree = theirs is None or theirs == ours
        _require(agree, config_path, f"do_lower_case must be {ours}, as in {LIBRARY_FILE}")
        _refuse_another_vocabulary(directory, tokenizer.tokens)
    elif (directory / VOCABULARY_FILE).exists():
        tokenizer = WordPieceTokenizer(
            read_vocabulary(directory / VOCABULARY_FILE),
            lowercase=bool(config.get("do_lower_case", True)),
            max_input_chars_per_word=_HUGGINGFACE_WORD,
        )
    else:
        return None
    more = config.get("additional_special_tokens")
    _require(not more, config_path, f"additional_special_tokens {more!r} are none of BERT's")
    for path, added in _added_tokens(directory, config):
        _refuse_foreign_added_tokens(added, tokenizer.tokens, path)
    return tokenizer


def write_google_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Writes vocab.txt (or sentencepiece.model, which the original does not read)."""
    tokenizer.save(directory, OPTIONS_FILE)


def read_google_tokenizer(directory: str | Path, lowercase: bool | None = None) -> Tokenizer | None:
    """Reads the tokenizer of a directory of google-research/bert; None if it has none.

    Args:
      directory: The directory.
      lowercase: Whether a vocab.txt is uncased. None takes the value from OPTIONS_FILE, or
        guesses it from the entries.

    Raises:
      UserError: Its files are damaged.
    """
    directory = Path(directory)
    if (directory / OPTIONS_FILE).exists():
        tokenizer = tokenizers.load(directory, OPTIONS_FILE)
        recorded = tokenizer.options["lowercase"]
        if lowercase not in (None, recorded):
            raise UserError(
                f"in {directory / OPTIONS_FILE} lowercase is {recorded}, not {lowercase}"
            )
        return tokenizer
    if (directory / VOCABULARY_FILE).exists():
        return read_vocabulary_file(directory / VOCABULARY_FILE, lowercase)
    return None


def read_vocabulary_file(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """Returns the tokenizer of a vocab.txt, with the options of the original.

    Args:
      path: The vocab.txt.
      lowercase: Whether the vocabulary is uncased. None means True unless an entry, other than
        those like [MASK], has an upper-case letter.

    Raises:
      UserError: The file cannot be read, or is not a vocabulary of BERT.
    """
    tokens = read_vocabulary(path)
    if lowercase is None:
        lowercase = all(t == t.lower() for t in tokens if not _IN_BRACKETS(t))
    return WordPieceTokenizer(tokens, lowercase=lowercase, max_input_chars_per_word=_GOOGLE_WORD)


_STRIP_ACCENTS = "strip_accents must be null or equal to lowercase; bert_jax supports nothing else"
_CHINESE = "Chinese characters are not split off; bert_jax always does"


def _read_library_file(path: Path) -> WordPieceTokenizer:
    """Reads a tokenizer.json; raises UserError unless it is a WordPiece with our rules."""
    content = _read_json(path)
    model, normalizer = _section(content, "model"), _section(content, "normalizer")
    kind = model.get("type", "WordPiece" if "max_input_chars_per_word" in model else None)
    if kind != "WordPiece":
        hint = f"; a tokenizer from bert_jax needs {MODEL_FILE} and {OPTIONS_FILE} beside it"
        _require(
            False,
            path,
            f"its model is {kind or 'missing'}, not BERT's WordPiece"
            + (hint if kind in ("Unigram", "BPE") else ""),
        )
    _require(normalizer.get("type") == "BertNormalizer", path, "its normalizer is not BERT's")
    splitter = _section(content, "pre_tokenizer").get("type")
    _require(splitter == "BertPreTokenizer", path, "its pre-tokenizer is not BERT's")
    lowercase = normalizer.get("lowercase")
    strip_accents = normalizer.get("strip_accents")
    _require(isinstance(lowercase, bool), path, "its normalizer has no `lowercase`")
    _require(strip_accents in (None, lowercase), path, _STRIP_ACCENTS)
    _require(normalizer.get("handle_chinese_chars") is True, path, _CHINESE)
    _require(normalizer.get("clean_text") is True, path, "clean_text must be true")
    _require(model.get("unk_token") == "[UNK]", path, "its unk_token must be [UNK]")
    prefix = model.get("continuing_subword_prefix")
    _require(prefix == "##", path, "its continuing_subword_prefix must be ##")
    max_chars = model.get("max_input_chars_per_word")
    whole = type(max_chars) is int and 0 < max_chars < 2**31
    _require(whole, path, "its model has no max_input_chars_per_word above 0")
    tokens = _tokens_in_order(model.get("vocab"), path)
    require_special_tokens(tokens, path)
    _refuse_foreign_added_tokens(content.get("added_tokens"), tokens, path)
    return WordPieceTokenizer(tokens, lowercase=lowercase, max_input_chars_per_word=max_chars)


def _tokens_in_order(vocabulary: Any, path: Path) -> list[str]:
    _require(isinstance(vocabulary, dict) and vocabulary, path, "its model has no `vocab`")
    ids = list(vocabulary.values())
    whole = all(type(i) is int for i in ids) and sorted(ids) == list(range(len(ids)))
    _require(whole, path, f"the ids of its {len(ids)} entries must be 0 to {len(ids) - 1}")
    unfit = [token for token in vocabulary if _UNFIT_FOR_A_LINE(token)]
    _require(not unfit, path, f"{unfit[:1]} cannot be a line of a {VOCABULARY_FILE}")
    return sorted(vocabulary, key=vocabulary.get)


def _refuse_foreign_added_tokens(added: Any, tokens: list[str], path: Path) -> None:
    """Refuses tokens beside BERT's five: they would be matched in the text, unlike ours."""
    added = [] if added is None else added
    whole = isinstance(added, list) and all(
        isinstance(token, dict)
        and type(token.get("id")) is int
        and isinstance(token.get("content"), str)
        and token["content"]
        for token in added
    )
    _require(whole, path, "its added tokens must each have an `id` and a `content`")
    foreign = sorted({token["content"] for token in added} - set(SPECIAL_TOKENS))
    shown = " ".join(t if t.isprintable() else ascii(t) for t in foreign[:5])
    _require(not foreign, path, f"it adds tokens that BERT does not have: {shown}")
    for token in added:
        same = tokens.index(token["content"]) == token["id"]
        _require(same, path, f"{token['content']} has two ids")


def _added_tokens(directory: Path, config: dict) -> Iterator[tuple[Path, list[dict]]]:
    """Yields the tokens that other files add to the vocabulary, in the form of tokenizer.json."""
    path, added = directory / CONFIG_FILE, config.get("added_tokens_decoder")
    if added is not None:
        whole = isinstance(added, dict) and all(
            re.fullmatch("[0-9]{1,10}", i) and isinstance(token, dict) for i, token in added.items()
        )
        _require(whole, path, "its added_tokens_decoder must have a token for each id")
        yield path, [token | {"id": int(i)} for i, token in added.items()]
    path = directory / ADDED_FILE
    if path.exists():
        added = _read_json(path)
        whole = all(type(i) is int for i in added.values())
        _require(whole, path, "it must have an id for each token")
        yield path, [{"content": token, "id": i} for token, i in added.items()]


def _refuse_another_vocabulary(directory: Path, tokens: list[str]) -> None:
    path = directory / VOCABULARY_FILE
    if path.exists() and read_vocabulary(path) != tokens:
        raise UserError(
            f"{path} and {directory / LIBRARY_FILE} have different entries: "
            "remove the one that is not the model's"
        )


def _section(content: dict, name: str) -> dict:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _require(condition: Any, path: Path, what: str) -> None:
    if not condition:
        raise UserError(f"{path} is not a tokenizer that bert_jax supports: {what}")


def _read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_bytes().decode())
    except OSError as e:
        raise UserError(f"cannot read {path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is damaged: it is not valid UTF-8") from None
    except ValueError as e:
        raise UserError(f"{path} is damaged: it is not whole JSON ({e})") from None
    except RecursionError:
        raise UserError(f"{path} is damaged: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it should be a JSON object")
    return content


def _write_json(path: Path, content: dict) -> None:
    _write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _write_text(path: Path, text: str) -> None:
    with naming(path):
        path.write_text(text, encoding="utf-8")


def _added_token(token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": token, **flags, "special": True}
