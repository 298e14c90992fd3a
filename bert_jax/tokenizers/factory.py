"""Loads saved tokenizers, and makes them from vocabulary files."""

from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.base import files
from bert_jax.base.parts import import_name
from bert_jax.tokenizers.added import ADDED_FILE, read_added
from bert_jax.tokenizers.base import OPTIONS_FILE, Kind, Tokenizer
from bert_jax.tokenizers.special_tokens import CONVENTIONS, SPECIAL_TOKENS, SpecialTokens
from bert_jax.tokenizers.vocabularies import LIBRARY_FILE

KINDS = {
    "wordpiece": "bert_jax.tokenizers.wordpiece:WORDPIECE",
    "sentencepiece": "bert_jax.tokenizers.sentencepiece:SENTENCEPIECE",
    "byte_bpe": "bert_jax.tokenizers.bpe:BYTE_BPE",
    "fastbpe": "bert_jax.tokenizers.word_bpe:FASTBPE",
    "tokenizer_json": "bert_jax.tokenizers.bpe:TOKENIZER_JSON",
    "protein": "bert_jax.tokenizers.protein:PROTEIN",
    "moses_bpe": "bert_jax.tokenizers.word_bpe:MOSES_BPE",
    "bert_bpe": "bert_jax.tokenizers.bpe:BERT_BPE",
}


def load_kind(name: str) -> Kind:
    """Loads a kind of tokenizer by its name, a key of KINDS."""
    return import_name(KINDS[name])


def load(directory: epath.PathLike) -> Tokenizer:
    """Reads a directory that `Tokenizer.save` wrote."""
    directory = files.checked_path(directory, "the tokenizer's directory")
    path = directory / OPTIONS_FILE
    options = files.read_json(path)
    with files.naming(path):
        special_tokens = CONVENTIONS[options.pop("special_tokens", "bert")]
        return from_file(path=directory, special_tokens=special_tokens, **options)


def vocabulary_files(kind: str, path: Path | epath.Path) -> list[Path | epath.Path]:
    """Finds the files of a vocabulary, the main file first, and ADDED_FILE last if there is one.

    Args:
      path: The main file, or a directory that has it under one of its usual names.
    """
    known = load_kind(kind)
    if path.is_dir():
        path = next((path / n for n in known.names if (path / n).exists()), path / known.names[0])
    is_last = path.name == known.names[-1] or len(known.names) == 1
    has_companion = known.companion and is_last
    added = path.parent / ADDED_FILE
    return [
        path,
        *([path.parent / known.companion] if has_companion else []),
        *([added] if added.exists() else []),
    ]


def from_file(
    kind: str,
    path: epath.PathLike,
    *,
    special_tokens: SpecialTokens = SPECIAL_TOKENS,
    **options: Any,
) -> Tokenizer:
    """Makes a tokenizer from the files of its vocabulary.

    Args:
      kind: One of KINDS.
      path: A directory with the files, or a single file: a vocab.txt (wordpiece); a .model, or a
        tokenizer.json with a Unigram model (sentencepiece); a vocab.json with merges.txt beside
        it, or a tokenizer.json (byte_bpe); a vocab.txt with bpe.codes beside it (fastbpe); a
        vocab.json with merges.txt beside it (moses_bpe and bert_bpe), or a tokenizer.json
        (bert_bpe, tokenizer_json). ADDED_FILE beside it belongs to it, and so do the added tokens
        of a tokenizer.json.
      options: Options of any kind; this kind ignores those that it does not have.
    """
    known = load_kind(kind)
    paths = vocabulary_files(kind, files.checked_path(path, "the vocabulary"))
    source = paths.pop() if paths[-1].name == ADDED_FILE else paths[0]
    with files.naming(" and ".join(map(str, paths))):
        vocabulary = known.read(*paths, special_tokens=special_tokens)
        added = read_added(source) if source.name in (ADDED_FILE, LIBRARY_FILE) else {}
    tokenizer = known.tokenizer(vocabulary, special_tokens=special_tokens, **known.own(options))
    tokenizer = tokenizer.with_added(added, source)
    with files.naming(source):
        # Some rules of a tokenizer.json fail only when they are used.
        tokenizer.encode_batch(["Any text, 1 été 中"])
    return tokenizer
