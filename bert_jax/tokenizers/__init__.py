"""Tokenizers behind one interface: WordPiece, SentencePiece and three kinds of BPE."""

from bert_jax.tokenizers.base import CONVENTIONS, MASK, SPECIAL_TOKENS, SpecialTokens, Tokenizer
from bert_jax.tokenizers.factory import (
    check_installed,
    from_file,
    load,
    train,
    vocabulary_files,
)
from bert_jax.tokenizers.sequence import TokenRow

__all__ = [
    "CONVENTIONS",
    "MASK",
    "SPECIAL_TOKENS",
    "SpecialTokens",
    "TokenRow",
    "Tokenizer",
    "check_installed",
    "from_file",
    "load",
    "train",
    "vocabulary_files",
]
