"""WordPiece and SentencePiece behind one small interface."""

from bert_jax.tokenizers.base import MASK, SPECIAL_TOKENS, Tokenizer
from bert_jax.tokenizers.factory import KINDS, check_kind, from_file, load, train

__all__ = [
    "KINDS",
    "MASK",
    "SPECIAL_TOKENS",
    "Tokenizer",
    "check_kind",
    "from_file",
    "load",
    "train",
]
