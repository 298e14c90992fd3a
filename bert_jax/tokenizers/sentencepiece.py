"""SentencePiece with BERT's special tokens, on the `sentencepiece` library.

Lower-casing also strips accents, as in WordPiece. It is done before the model is
applied and works with any model.
"""

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import sentencepiece
from etils import epath
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from bert_jax.errors import UserError
from bert_jax.tokenizers.alignment import decompose, monotone
from bert_jax.tokenizers.base import (
    SPECIAL_TOKENS,
    SpecialTokens,
    Tokenizer,
    read_vocabulary_file,
    require_special_tokens,
)

MODEL_FILE = "sentencepiece.model"
WORD_START = "▁"
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece tokenizer; see `Tokenizer`. `model` is the serialized model."""

    kind = "sentencepiece"

    def __init__(
        self, model: bytes, *, lowercase: bool, special_tokens: SpecialTokens = SPECIAL_TOKENS
    ):
        self.model = model
        self._lowercase = lowercase
        self._backend = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._backend.id_to_piece(i) for i in range(self._backend.get_piece_size())]
        tokens = around_pieces(pieces, special_tokens)
        super().__init__({"lowercase": lowercase}, model, tokens, special_tokens)
        # The library's id of a piece differs from ours if there are entries around the pieces.
        ids = {token: i for i, token in enumerate(tokens)}
        self._id_of_piece_P = np.array([ids[piece] for piece in pieces], np.int32)
        self._piece_of_id = {i: p for p, i in enumerate(self._id_of_piece_P.tolist())}

    @functools.cached_property
    def _within_word(self) -> sentencepiece.SentencePieceProcessor:
        """Encodes text that continues a word after a mask."""
        model = sentencepiece_model_pb2.ModelProto.FromString(self.model)
        model.normalizer_spec.add_dummy_prefix = False
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    def is_word_start(self, token: str) -> bool:
        return token.startswith(WORD_START) or token in self.special_tokens.spellings

    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        if self._lowercase:
            sentences = [fold(sentence) for sentence in sentences]
        # One thread, because the caller chooses the number of processes.
        batch = self._backend.encode(list(sentences), out_type=int, num_threads=1)
        return [self._id_of_piece_P[pieces] for pieces in map(_indices, batch)]

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        first, *others = parts
        ids = self.encode_batch([first])
        for part in others:
            if part[:1].isspace():
                # The first piece of a word includes the space before it.
                ids += self.encode_batch([part])
            else:
                text = fold(part) if self._lowercase else part
                pieces = _indices(self._within_word.encode(text, out_type=int))
                ids.append(self._id_of_piece_P[pieces])
        return ids

    def encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        folded, sources = fold_aligned(text) if self._lowercase else (text, range(len(text)))
        encoded = sentencepiece_pb2.SentencePieceText()
        encoded.ParseFromString(self._backend.encode(folded, out_type="serialized_proto"))
        # The library counts bytes. Character c of `folded` comes from the text between bounds[c]
        # and bounds[c + 1], which includes stripped accents.
        widths = [len(character.encode()) for character in folded]
        character_at = [*np.repeat(np.arange(len(folded)), widths).tolist(), len(folded)]
        bounds = [*sources, len(text)]
        spans = []
        for piece in encoded.pieces:
            start, end = character_at[piece.begin], character_at[piece.end]
            # The first piece of a word includes the space before it.
            while start < end and folded[start].isspace():
                start += 1
            # A piece that is part of a character (a ligature, a Hangul syllable) covers all of it.
            last = min(max(start, end - 1), len(folded) - 1)
            spans.append((bounds[start], max(bounds[end], bounds[last] + 1)))
        pieces = _indices([piece.id for piece in encoded.pieces])
        return self._id_of_piece_P[pieces], monotone(spans)

    def decode(self, ids: Sequence[int]) -> str:
        special, words, text = set(self.special_ids), [], []
        # The library would drop control symbols.
        for i in map(int, ids):
            if i not in special and i in self._piece_of_id:
                words.append(self._piece_of_id[i])
                continue
            text += [self._backend.decode(words), self.id_to_token(i)]
            words = []
        return " ".join(part for part in (*text, self._backend.decode(words)) if part)

    def save_vocabulary(self, directory: Path | epath.Path) -> None:
        (directory / MODEL_FILE).write_bytes(self.model)


def around_pieces(pieces: Sequence[str], special_tokens: SpecialTokens) -> list[str]:
    """Returns the vocabulary of a model with these pieces; see `SpecialTokens.last`."""
    if not special_tokens.last:
        return list(pieces)
    added = {*special_tokens.first, *special_tokens.last}
    kept = [piece for piece in pieces if piece not in added]
    return [*special_tokens.first, *kept, *special_tokens.last]


def _indices(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)


def fold(text: str) -> str:
    """Lower-cases and strips accents (NFD without its nonspacing marks), as BERT does."""
    text = text.lower()
    if text.isascii():
        return text
    text = unicodedata.normalize("NFD", text)
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def fold_aligned(text: str) -> tuple[str, list[int]]:
    """Returns `fold(text)` and the index in the text of each of its characters."""
    lowered = text.lower()
    # The number of characters does not depend on the context; only the form of sigma does.
    indices = [i for i, character in enumerate(text) for _ in character.lower()]
    parts, sources = decompose(lowered)
    kept = [
        (part, indices[source])
        for part, source in zip(parts, sources, strict=True)
        if unicodedata.category(part) != "Mn"
    ]
    return "".join(part for part, _ in kept), [index for _, index in kept]


def read_model(path: epath.PathLike, special_tokens: SpecialTokens = SPECIAL_TOKENS) -> bytes:
    """Returns a serialized model in which text never becomes a special token.

    Raises:
      UserError: The file cannot be read, is not a SentencePiece model, or lacks a special
        token.
    """
    model = sentencepiece_model_pb2.ModelProto()
    content = read_vocabulary_file(path)
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's DecodeError, whose module is not public
        raise UserError(f"{path} is not a SentencePiece model") from None
    tokens = around_pieces([piece.piece for piece in model.pieces], special_tokens)
    require_special_tokens(tokens, special_tokens, path)
    for piece in model.pieces:
        # In ALBERT's models, "[MASK]" in the text becomes the token.
        if piece.piece in special_tokens.spellings and piece.type != _Piece.UNKNOWN:
            piece.type = _Piece.CONTROL
    return model.SerializeToString()
