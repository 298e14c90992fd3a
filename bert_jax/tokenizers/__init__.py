"""Tokenizers behind one interface: WordPiece, SentencePiece and three kinds of BPE.

`base.Tokenizer` is the interface. `factory.py` opens a tokenizer and has the modules of its kinds.
Only the preparation of text trains or extends a vocabulary (`training.py`).
"""

from bert_jax.tokenizers.base import Tokenizer
from bert_jax.tokenizers.factory import from_file, load, vocabulary_files
from bert_jax.tokenizers.sequence import TokenRow
from bert_jax.tokenizers.special_tokens import CONVENTIONS, MASK, SPECIAL_TOKENS, SpecialTokens

__all__ = [
    "CONVENTIONS",
    "MASK",
    "SPECIAL_TOKENS",
    "SpecialTokens",
    "TokenRow",
    "Tokenizer",
    "from_file",
    "load",
    "vocabulary_files",
]
