"""SentencePiece with BERT's special tokens, on the `sentencepiece` library.

Lower-casing also strips accents, as in WordPiece, and is done here before the
model sees the text, so that it holds for a given model too.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece
from etils import epath
from sentencepiece import sentencepiece_model_pb2

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tokenizers.base import SPECIAL_TOKENS, Tokenizer, require_special_tokens

MODEL_FILE = "sentencepiece.model"
WORD_START = "▁"
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece


class SentencePieceTokenizer(Tokenizer):
    """See `Tokenizer`. `model` is the serialized SentencePiece model."""

    kind = "sentencepiece"

    def __init__(self, model: bytes, *, lowercase: bool):
        self.model = model
        self._lowercase = lowercase
        self._backend = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens = [self._backend.id_to_piece(i) for i in range(self._backend.get_piece_size())]
        super().__init__({"lowercase": lowercase}, model, tokens)

    @staticmethod
    def is_word_start(token: str) -> bool:
        return token.startswith(WORD_START) or token in SPECIAL_TOKENS

    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        if self._lowercase:
            sentences = [fold(sentence) for sentence in sentences]
        # One thread: the caller decides how many processes work.
        batch = self._backend.encode(list(sentences), out_type=int, num_threads=1)
        return [np.array(ids, np.int32) for ids in batch]

    def decode(self, ids: Sequence[int]) -> str:
        special, words, text = set(self.special_ids), [], []
        # The library drops control symbols; they are spelt out instead.
        for i in map(int, ids):
            if i not in special:
                words.append(i)
                continue
            text += [self._backend.decode(words), self.id_to_token(i)]
            words = []
        return " ".join(part for part in (*text, self._backend.decode(words)) if part)

    def save_vocabulary(self, directory: Path | epath.Path) -> None:
        (directory / MODEL_FILE).write_bytes(self.model)


def fold(text: str) -> str:
    """Lower-cases and strips accents (NFD without its nonspacing marks), as BERT does."""
    text = text.lower()
    if text.isascii():
        return text
    text = unicodedata.normalize("NFD", text)
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def read_model(path: epath.PathLike) -> bytes:
    """Returns a serialized model whose special tokens cannot be spelt by text.

    Raises:
      UserError: if the file cannot be read, is no SentencePiece model, or lacks
        one of the special tokens.
    """
    model = sentencepiece_model_pb2.ModelProto()
    try:
        model.ParseFromString(storage.open_path(path, "the SentencePiece model").read_bytes())
    except OSError as e:
        raise UserError(
            f"cannot read the SentencePiece model {path}: {e.strerror or 'no such file'}"
        ) from None
    except Exception:  # protobuf's DecodeError, whose module is not public
        raise UserError(f"{path} is not a SentencePiece model") from None
    if not model.pieces:
        raise UserError(f"{path} is not a SentencePiece model, or an empty one")
    require_special_tokens([piece.piece for piece in model.pieces], path)
    for piece in model.pieces:
        # ALBERT's models, for one, let "[MASK]" in the text become the token.
        if piece.piece in SPECIAL_TOKENS and piece.type != _Piece.UNKNOWN:
            piece.type = _Piece.CONTROL
    return model.SerializeToString()
