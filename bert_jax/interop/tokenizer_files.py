"""Reads and writes the tokenizer files of Hugging Face, and reads Google's vocab.txt.

A tokenizer keeps its fingerprint in any chain of conversions. OPTIONS_FILE, a small extra file,
holds what the other program's files cannot express: the lower-casing of a vocab.txt, and all
options of SentencePiece.

`Family.tokenizer` is the class of directories that do not name one. A tokenizer is written for
this class if it fits, otherwise for the first class that fits. The last class fits every tokenizer,
so a family can be trained with any tokenizer.

In `transformers` 5 a named class takes the vocabulary from tokenizer.json, but the normalizer and
the splitting into words from its own code. Where these differ from ours, exports name the last
class, which takes everything from tokenizer.json in both versions.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as LibraryTokenizer

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.family import Family
from bert_jax.interop.tokenizer_json import added_tokens, to_library
from bert_jax.tokenizers import CONVENTIONS, SpecialTokens, Tokenizer
from bert_jax.tokenizers.added import described, read_added, token_of
from bert_jax.tokenizers.base import OPTIONS_FILE
from bert_jax.tokenizers.bpe import VOCABULARY_FILE as BPE_FILE
from bert_jax.tokenizers.vocabularies import LIBRARY_FILE, require_special_tokens, tokens_by_id
from bert_jax.tokenizers.wordpiece import VOCABULARY_FILE, WordPieceTokenizer, read_vocabulary

CONFIG_FILE = "tokenizer_config.json"
ADDED_FILE = "added_tokens.json"
SPECIALS_FILE = "special_tokens_map.json"
_SPECIAL_KEYS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# The conventions that also name the tokens that begin and end a text, and those whose published
# tokenizers name none for unknown text.
_WITH_ENDS = ("roberta", "camembert", "albert", "gemma", "eurobert")
_WITHOUT_UNKNOWN = ("eurobert",)
# Words with more characters become [UNK]; a vocab.txt cannot change these limits.
_GOOGLE_WORD, _HUGGINGFACE_WORD = 200, 100
# Matches [CLS], [unused1], and <S> in the (uncased) Chinese vocabulary.
_IN_BRACKETS = re.compile(r"\[.+\]|<.+>").fullmatch


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """A class of `transformers` for some tokenizers.

    Attributes:
      kind: The kind of tokenizer; empty for all kinds.
      special_tokens: The special tokens, a key of CONVENTIONS.
      required: Options that the tokenizer must have; a missing option counts as False.
      options: Maps keys of a tokenizer_config.json to options of the tokenizer, and to the values
        that they have if the file lacks these keys.
      fixed: More keys, with the only values that can be read.
      vocabulary_file: The name of the vocabulary's main file; empty for our own name. BPE_FILE and
        its merges.txt are written beside tokenizer.json.
      is_fast: Whether the class can have a tokenizer.json.
      exact: Options of the tokenizers for which the class gives the ids of tokenizer.json in
        `transformers` 5 too; None if there are none.
    """

    kind: str
    special_tokens: str
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary_file: str = ""
    is_fast: bool = True
    exact: Mapping[str, Any] | None = dataclasses.field(default_factory=dict)

    def fits(self, tokenizer: Tokenizer) -> bool:
        """Returns whether the class supports the vocabulary and the options of a tokenizer."""
        return not self.kind or (
            tokenizer.kind == self.kind
            and tokenizer.special_tokens == CONVENTIONS[self.special_tokens]
            and all(tokenizer.options.get(k, False) == v for k, v in self.required.items())
        )

    def keeps_ids(self, tokenizer: Tokenizer) -> bool:
        """Returns whether `transformers` 4 and 5 both give the ids of a tokenizer that fits."""
        return self.exact is not None and self.exact.items() <= tokenizer.options.items()


_WORDPIECE = TokenizerClass(
    "wordpiece",
    "bert",
    options={"do_lower_case": ("lowercase", True)},
    exact={"max_input_chars_per_word": 100},
)
_FAIRSEQ_SENTENCEPIECE = TokenizerClass(
    "sentencepiece",
    "roberta",
    required={"lowercase": False, "sentencepiece_rules": False},
    vocabulary_file="sentencepiece.bpe.model",
    exact=None,
)
_BYTE_BPE = TokenizerClass(
    "byte_bpe",
    "roberta",
    options={"add_prefix_space": ("add_prefix_space", False)},
    vocabulary_file=BPE_FILE,
)
# The class that reads everything from tokenizer.json.
ANY_TOKENIZER = "PreTrainedTokenizerFast"
TOKENIZER_CLASSES: Mapping[str, TokenizerClass] = {
    "BertTokenizer": _WORDPIECE,
    "DistilBertTokenizer": _WORDPIECE,
    "ElectraTokenizer": _WORDPIECE,
    "RobertaTokenizer": _BYTE_BPE,
    "BartTokenizer": _BYTE_BPE,
    "XLMRobertaTokenizer": _FAIRSEQ_SENTENCEPIECE,
    "CamembertTokenizer": dataclasses.replace(_FAIRSEQ_SENTENCEPIECE, special_tokens="camembert"),
    "AlbertTokenizer": TokenizerClass(
        "sentencepiece",
        "albert",
        required={"sentencepiece_rules": "albert"},
        options={"do_lower_case": ("lowercase", True)},
        fixed={"keep_accents": False, "remove_space": True},
        vocabulary_file="spiece.model",
        exact=None,
    ),
    "PhobertTokenizer": TokenizerClass("fastbpe", "roberta", is_fast=False),
    "FlaubertTokenizer": TokenizerClass(
        "moses_bpe", "xlm", options={"do_lowercase": ("lowercase", False)}, is_fast=False
    ),
    "HerbertTokenizer": TokenizerClass("bert_bpe", "herbert", vocabulary_file=BPE_FILE),
    "EsmTokenizer": TokenizerClass("protein", "esm", is_fast=False),
    "EsmcTokenizer": TokenizerClass("protein", "esm"),
    # Not a class of transformers: the byte-level BPE of a PreTrainedTokenizerFast.
    "ModernBertTokenizer": TokenizerClass("byte_bpe", "modernbert", exact=None),
    # Nor this: the byte-level BPE of EuroBERT, whose rules are Llama 3's.
    "EuroBertTokenizer": TokenizerClass("tokenizer_json", "eurobert", exact=None),
    "GemmaTokenizer": TokenizerClass("tokenizer_json", "gemma", exact=None),
    ANY_TOKENIZER: TokenizerClass("", "bert"),
}


def write_huggingface_tokenizer(
    tokenizer: Tokenizer, directory: Path, family: Family, model_max_length: int
) -> None:
    """Writes a directory for `transformers.AutoTokenizer.from_pretrained`.

    The written tokenizer gives the same ids, with exceptions that `tokenizer_json` lists, such as
    "[MASK]" in the text. The class is the family's own if it fits the tokenizer.
    """
    names = [family.tokenizer, *TOKENIZER_CLASSES]
    class_name = next(name for name in names if TOKENIZER_CLASSES[name].fits(tokenizer))
    tokenizer_class = TOKENIZER_CLASSES[class_name]
    library = to_library(tokenizer) if tokenizer_class.is_fast else None
    directory.mkdir(parents=True, exist_ok=True)
    special_tokens = _named_tokens(tokenizer)
    # A model without token types refuses them.
    has_types = tokenizer.template.num_segments == 2 and family.fixed.get("type_vocab_size") != 0
    config = {
        "added_tokens_decoder": {
            str(i): described(token) for i, token in added_tokens(tokenizer).items()
        },
        "model_max_length": model_max_length,
        **special_tokens,
        "tokenizer_class": class_name if tokenizer_class.keeps_ids(tokenizer) else ANY_TOKENIZER,
        **{key: tokenizer.options[ours] for key, (ours, _) in tokenizer_class.options.items()},
        **tokenizer_class.fixed,
        # It removes spaces before punctuation, which only WordPiece adds.
        "clean_up_tokenization_spaces": tokenizer_class.kind == "wordpiece",
        "model_input_names": [
            "input_ids",
            *(["token_type_ids"] if has_types else []),
            "attention_mask",
        ],
    }
    if tokenizer_class.kind == "wordpiece":
        tokenizer.save_vocabulary(directory)
    else:
        tokenizer.save(directory)
    name = tokenizer_class.vocabulary_file
    if name == BPE_FILE:
        library.model.save(str(directory))
    elif name:
        tokenizers.vocabulary_files(tokenizer.kind, directory)[0].rename(directory / name)
    if library:
        text = library.to_str(pretty=True) + "\n"
        files.write_whole(directory / LIBRARY_FILE, text.encode())
    files.write_json(directory / CONFIG_FILE, config)
    files.write_json(directory / SPECIALS_FILE, special_tokens)


def _named_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns the special tokens of a tokenizer_config.json, as the published tokenizers have."""
    special = tokenizer.special_tokens
    named = dict(zip(_SPECIAL_KEYS, special.spellings, strict=True))
    convention = tokenizer.options.get("special_tokens", "bert")
    if convention in _WITH_ENDS:
        named |= {"bos_token": special.cls, "eos_token": special.sep}
    if convention in _WITHOUT_UNKNOWN:
        del named["unk_token"]
    return named


def read_huggingface_tokenizer(
    directory: Path, family: Family
) -> tuple[Tokenizer | None, list[str]]:
    """Reads the tokenizer of a directory, if any; makes a sentence for each guessed setting."""
    config = files.read_json(directory / CONFIG_FILE, optional=True)
    notes: list[str] = []
    if (directory / OPTIONS_FILE).exists():
        tokenizer = tokenizers.load(directory)
    else:
        tokenizer = _read_tokenizer(directory, config, family, notes)
    if tokenizer is None:
        return None, notes
    # A program that adds tokens to an export does not write them to our own file.
    added = _read_added_tokens(directory, config)
    return tokenizer.with_added(added | tokenizer.added, directory), notes


def _read_added_tokens(directory: Path, config: dict[str, Any]) -> dict[int, AddedToken]:
    """Reads the added tokens of a directory by their ids, from all files that may have them."""
    added = {}
    specials = files.read_json(directory / SPECIALS_FILE, optional=True)
    listed = specials.get("additional_special_tokens") or ()
    special = {t["content"] if isinstance(t, dict) else t for t in listed}
    for content, i in files.read_json(directory / ADDED_FILE, optional=True).items():
        added[int(i)] = token_of(content, {"special": content in special})
    for i, token in (config.get("added_tokens_decoder") or {}).items():
        added[int(i)] = token_of(token["content"], token)
    if (path := directory / LIBRARY_FILE).exists():
        added |= read_added(path)
    return added


def _read_tokenizer(
    directory: Path, config: dict[str, Any], family: Family, notes: list[str]
) -> Tokenizer | None:
    config_path = directory / CONFIG_FILE
    class_name = tokenizer_class_of(directory)
    if class_name not in TOKENIZER_CLASSES or not TOKENIZER_CLASSES[class_name].kind:
        class_name = _class_with_specials(directory / LIBRARY_FILE, family.tokenizer)
    tokenizer_class = TOKENIZER_CLASSES[class_name]
    special_tokens = CONVENTIONS[tokenizer_class.special_tokens]
    if tokenizer_class.kind == "wordpiece":
        return _read_wordpiece(directory, config, special_tokens, notes)
    if not tokenizers.vocabulary_files(tokenizer_class.kind, directory)[0].exists():
        return None
    _check_keys(config, tokenizer_class.fixed, config_path)
    # Required options that are False are not stored.
    options = {key: value for key, value in tokenizer_class.required.items() if value}
    for key, (ours, default) in tokenizer_class.options.items():
        options[ours] = config.get(key, default)
    return tokenizers.from_file(
        tokenizer_class.kind, directory, special_tokens=special_tokens, **options
    )


def tokenizer_class_of(directory: Path) -> str:
    """Reads the tokenizer class from a directory's configs, without "Fast"; empty if none."""
    paths = (directory / name for name in (CONFIG_FILE, "config.json"))
    names = (files.read_json(path, optional=True).get("tokenizer_class") for path in paths)
    return next(filter(None, names), "").removesuffix("Fast")


def _class_with_specials(path: Path, usual: str) -> str:
    """Returns the first class whose special tokens a tokenizer.json has, the usual one first."""
    added = files.read_json(path, optional=True).get("added_tokens") or ()
    found = {token["content"] for token in added}
    return next(
        (
            name
            for name in (usual, *TOKENIZER_CLASSES)
            if found >= {*CONVENTIONS[TOKENIZER_CLASSES[name].special_tokens].spellings}
        ),
        usual,
    )


def _read_wordpiece(
    directory: Path, config: dict[str, Any], special_tokens: SpecialTokens, notes: list[str]
) -> Tokenizer | None:
    if (directory / LIBRARY_FILE).exists():
        tokenizer: Tokenizer = _read_library_file(directory / LIBRARY_FILE, special_tokens)
    elif (directory / VOCABULARY_FILE).exists():
        tokens = read_vocabulary(directory / VOCABULARY_FILE, special_tokens)
        lowercase = config.get("do_lower_case")
        if lowercase is None:
            cased = _cased(tokens)
            lowercase = not cased
            if cased:
                notes.append(
                    f"{directory} does not say whether text is lower-cased; {len(cased):,} of its "
                    f"{len(tokens):,} tokens have capital letters, such as {cased[0]!r}, so text "
                    f"keeps its case; to choose, set do_lower_case in {CONFIG_FILE}"
                )
        tokenizer = WordPieceTokenizer(
            tokens,
            lowercase=bool(lowercase),
            max_input_chars_per_word=_HUGGINGFACE_WORD,
            special_tokens=special_tokens,
        )
    else:
        return None
    lowercase = tokenizer.options["lowercase"]
    # These keys override the rules in tokenizer.json.
    keys = {"do_lower_case": lowercase, "strip_accents": lowercase}
    keys |= {"tokenize_chinese_chars": True, "do_basic_tokenize": True}
    _check_keys(config, keys, directory / CONFIG_FILE)
    return tokenizer


def _check_keys(config: dict[str, Any], values: Mapping[str, Any], path: Path) -> None:
    for key, value in values.items():
        if config.get(key) not in (None, value):
            raise UserError(f"{path}: {key} is {config[key]!r}; it must be {value}")


def read_google_vocabulary(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """Reads a vocab.txt; the tokenizer has the options of google-research/bert.

    If `lowercase` is None, a vocabulary without upper-case letters is uncased. Tokens like [MASK]
    are ignored for this.
    """
    tokens = read_vocabulary(path)
    if lowercase is None:
        lowercase = not _cased(tokens)
    return WordPieceTokenizer(tokens, lowercase=lowercase, max_input_chars_per_word=_GOOGLE_WORD)


def _cased(tokens: Sequence[str]) -> list[str]:
    """Returns the tokens with capital letters, which lower-cased text never produces."""
    return [t for t in tokens if t != t.lower() and not _IN_BRACKETS(t)]


def _read_library_file(path: Path, special_tokens: SpecialTokens) -> WordPieceTokenizer:
    """Reads a tokenizer.json; raises UserError unless it is a WordPiece with BERT's rules."""
    content = files.read_json(path)
    vocabulary = (content.get("model") or {}).get("vocab")
    with files.naming(path):
        if isinstance(vocabulary, dict):
            tokens_by_id(vocabulary)  # The library would abort the process for an id of billions.
        theirs = LibraryTokenizer.from_str(json.dumps(content))
    model, rules = theirs.model, theirs.normalizer
    if not isinstance(model, models.WordPiece) or not isinstance(rules, normalizers.BertNormalizer):
        raise UserError(
            f"{path} is not BERT's WordPiece; a SentencePiece tokenizer from bert_jax needs "
            f"{OPTIONS_FILE} beside it"
        )
    ids = theirs.get_vocab(with_added_tokens=False)
    # What cannot be a line of a vocab.txt is no word either, so no text produces it.
    words = {t: i for t, i in ids.items() if t.strip() and not set("\r\n") & set(t)}
    tokens = tokens_by_id(words, 1 + max(ids.values(), default=0))
    require_special_tokens(tokens, special_tokens, path)
    if rules.strip_accents == rules.lowercase:
        rules.strip_accents = None
    ours = WordPieceTokenizer(
        tokens,
        lowercase=rules.lowercase,
        max_input_chars_per_word=model.max_input_chars_per_word,
        special_tokens=special_tokens,
    )
    _refuse_other_rules(json.loads(theirs.to_str()), json.loads(to_library(ours).to_str()), path)
    return ours


def _refuse_other_rules(theirs: dict[str, Any], ours: dict[str, Any], path: Path) -> None:
    for section in ("model", "normalizer", "pre_tokenizer"):
        for key, value in ours[section].items():
            if key == "vocab":
                continue
            found = (theirs[section] or {}).get(key)
            if found != value:
                raise UserError(
                    f"{path}: {key} of its {section} is {found!r}; bert_jax supports only {value!r}"
                )
