"""SentencePiece, on the `sentencepiece` library.

`sentencepiece_rules` selects how text is normalized before the model; both rules work with any
model:

* "plain": only lower-casing, if set, which also strips accents, as in WordPiece.
* "albert": the rules of google-research/albert: `preprocess_text` and `encode_pieces` in
  tokenization.py, `_is_start_piece_sp` in create_pretraining_data.py. The doubled quotation marks
  `` and '' become ". The ids equal those of `transformers`' AlbertTokenizer, except that a capital
  sigma at the end of a word becomes ς.
"""

import base64
import functools
import itertools
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import sentencepiece
from etils import epath
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2
from tokenizers import AddedToken

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Kind, Tokenizer
from bert_jax.tokenizers.special_tokens import SPECIAL_TOKENS, SpecialTokens
from bert_jax.tokenizers.vocabularies import LIBRARY_FILE, require_special_tokens
from bert_jax.tokenizers.wordpiece import WordSplitter

MODEL_FILE = "sentencepiece.model"
WORD_START = "▁"
_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_WORD_INSIDE = _PUNCTUATION | frozenset("abcdefghijklmnopqrstuvwxyz")
_split_cased = WordSplitter(lowercase=False).split


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece tokenizer; see `Tokenizer`. `model` is serialized."""

    kind = "sentencepiece"
    word_start = WORD_START

    def __init__(
        self,
        model: bytes,
        *,
        lowercase: bool,
        sentencepiece_rules: str = "plain",
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
    ):
        self.model = model
        self._lowercase, self._rules = lowercase, sentencepiece_rules
        self._is_albert = sentencepiece_rules == "albert"
        self._backend = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._backend.id_to_piece(i) for i in range(self._backend.get_piece_size())]
        tokens = around_pieces(pieces, special_tokens)
        options: dict[str, Any] = {"lowercase": lowercase}
        if self._is_albert:
            options["sentencepiece_rules"] = sentencepiece_rules
        super().__init__(options, model, {MODEL_FILE: model}, tokens, special_tokens)
        # The library's ids differ from this vocabulary's if there are tokens around the pieces.
        self._id_of_piece_P = np.array([self.ids[piece] for piece in pieces], np.int32)
        self._piece_of_id = {i: p for p, i in enumerate(self._id_of_piece_P.tolist())}
        self._numbers = self._number_pieces(pieces) if self._is_albert else {}

    def with_added(self, added: Mapping[int, AddedToken], path: epath.PathLike) -> Self:
        other = super().with_added(added, path)
        begins_words = self.special_tokens.mask_takes_space
        for token in other.added.values():
            # Versions of transformers differ in the space before a normalized token.
            if token.normalized or not begins_words:
                raise UserError(
                    f"{path}: bert_jax cannot find the added token {token.content!r} as "
                    'transformers does; with SentencePiece it must have "normalized": false, and '
                    "the special tokens must be those of RoBERTa, CamemBERT or ALBERT"
                )
        return other

    @functools.cached_property
    def _within_word(self) -> sentencepiece.SentencePieceProcessor:
        """A processor for text that continues a word after a mask."""
        return self._processor(add_dummy_prefix=False)

    @functools.cached_property
    def _of_words(self) -> sentencepiece.SentencePieceProcessor:
        """A processor for words that `words` returns."""
        return self._processor(add_dummy_prefix=False, remove_extra_whitespaces=False)

    def _processor(self, **rules: bool) -> sentencepiece.SentencePieceProcessor:
        """Makes a processor that normalizes text by other rules."""
        model = sentencepiece_model_pb2.ModelProto.FromString(self.model)
        for name, value in rules.items():
            setattr(model.normalizer_spec, name, value)
        return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())

    def words(self, text: str) -> list[str]:
        """Splits text into normalized words and marks; words after a space begin with "▁"."""
        normalized = self._backend.normalize(self._normalized(text))
        spaced = normalized.replace(WORD_START, f" {WORD_START}")
        return [word for word in _split_cased(spaced) if word != WORD_START]

    def word_pieces(self, word: str) -> list[int]:
        return self._ids(self._of_words.encode(word, out_type=int)).tolist()

    @property
    def is_unigram(self) -> bool:
        """Whether the most probable pieces are chosen; otherwise pieces are merged ("bpe")."""
        model = sentencepiece_model_pb2.ModelProto.FromString(self.model)
        return model.trainer_spec.model_type == sentencepiece_model_pb2.TrainerSpec.UNIGRAM

    def is_word_start(self, token: str) -> bool:
        if token.startswith(WORD_START) or token in self.special_tokens.spellings:
            return True
        # ALBERT's words begin at punctuation, and at every piece with a character that is neither
        # an English letter nor punctuation.
        return self._is_albert and (
            token.startswith("<")
            or token in _PUNCTUATION
            or not all(character.lower() in _WORD_INSIDE for character in token)
        )

    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        # One thread, because the caller chooses the number of processes.
        batch = self._backend.encode(
            [self._normalized(sentence) for sentence in sentences], out_type=int, num_threads=1
        )
        return [self._ids(pieces) for pieces in batch]

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        # The model drops a space at the end of a text, whatever a file says of the mask's.
        if self.special_tokens.mask_takes_space:
            return self.encode_batch(parts)
        first, *others = parts
        ids = self.encode_batch([first])
        for part in others:
            if part[:1].isspace():
                # The first piece of a word includes the space before it.
                ids += self.encode_batch([part])
            else:
                pieces = self._within_word.encode(self._normalized(part), out_type=int)
                ids.append(self._ids(pieces))
        return ids

    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        folded, sources = self._normalized_aligned(text)
        encoded = sentencepiece_pb2.SentencePieceText()
        encoded.ParseFromString(self._backend.encode(folded, out_type="serialized_proto"))
        # The library counts bytes. Character c of `folded` comes from the text between bounds[c]
        # and bounds[c + 1], which includes stripped accents.
        widths = [len(character.encode()) for character in folded]
        character_at = [*np.repeat(np.arange(len(folded)), widths).tolist(), len(folded)]
        bounds = [*sources, len(text.rstrip()) if self._is_albert else len(text)]
        pieces: list[int] = []
        spans = []
        for piece in encoded.pieces:
            start, end = character_at[piece.begin], character_at[piece.end]
            # The first piece of a word includes the space before it, which may be long.
            while start < len(folded) - 1 and folded[start].isspace():
                start += 1
            # A piece that is part of a character (a ligature, a Hangul syllable) covers all of it.
            last = min(max(start, end - 1), len(folded) - 1)
            pieces.append(piece.id)
            if piece.id not in self._numbers:
                spans.append((bounds[start], max(bounds[end], bounds[last] + 1)))
                continue
            for length in self._numbers[piece.id][1]:
                stop = min(start + length, last + 1)
                spans.append((bounds[start], max(bounds[stop], bounds[start] + 1)))
                start = min(stop, last)
        return self._ids(pieces), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Sequence[int]) -> str:
        text: list[str] = []
        # The library would drop control symbols.
        pieces = self._piece_of_id.keys() - self.special_ids
        for is_text, group in itertools.groupby(map(int, ids), pieces.__contains__):
            if is_text:
                text.append(self._backend.decode([self._piece_of_id[i] for i in group]))
            else:
                text += [self.tokens[i] for i in group]
        return " ".join(filter(None, text))

    def _normalized(self, text: str) -> str:
        return normalize(text, self._lowercase, self._rules)

    def _normalized_aligned(self, text: str) -> tuple[str, Sequence[int]]:
        if self._is_albert:
            return self._normalized(text), _albert_sources(text, self._lowercase)
        if self._lowercase:
            # Context affects the form of sigma and the order of marks, never their number.
            return _fold(text), [i for i, character in enumerate(text) for _ in _fold(character)]
        return text, range(len(text))

    def _ids(self, pieces: Sequence[int]) -> np.ndarray:
        """Converts the library's piece ids to ids of this vocabulary."""
        if self._numbers:
            pieces = [q for p in pieces for q in self._numbers.get(p, ([p],))[0]]
        return self._id_of_piece_P[np.array(pieces, np.int64)]

    def _number_pieces(self, pieces: Sequence[str]) -> dict[int, tuple[list[int], list[int]]]:
        """Maps each piece that ALBERT splits to its parts' ids and lengths in characters.

        ALBERT splits pieces such as "▁2," and "9,".
        """
        split = {}
        for index, piece in enumerate(pieces):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                number = piece[:-1].replace(WORD_START, "")
                parts = self._backend.encode(number, out_type=str)
                if not piece.startswith(WORD_START):
                    parts[0] = parts[0].removeprefix(WORD_START)
                parts = [part for part in (*parts, ",") if part]
                ids = [self._backend.piece_to_id(part) for part in parts]
                split[index] = ids, [len(part.removeprefix(WORD_START)) for part in parts]
        return split


def around_pieces(pieces: Sequence[str], special_tokens: SpecialTokens) -> list[str]:
    """Adds special tokens around the pieces of a model; see `SpecialTokens.last`."""
    if not special_tokens.last:
        return list(pieces)
    added = {*special_tokens.first, *special_tokens.last}
    kept = [piece for piece in pieces if piece not in added]
    return [*special_tokens.first, *kept, *special_tokens.last]


def normalize(text: str, lowercase: bool, rules: str) -> str:
    """Normalizes a text by the rules "plain" or "albert", before the model does.

    ALBERT turns white space into single spaces, and decomposes compatibility characters (NFKD
    without combining marks).
    """
    if rules == "albert":
        text = " ".join(text.split()).replace("``", '"').replace("''", '"')
        return _decomposed(text, lowercase)
    return _fold(text) if lowercase else text


def _fold(text: str) -> str:
    """Lower-cases and strips accents (NFD without its nonspacing marks), as BERT does."""
    text = text.lower()
    if text.isascii():
        return text
    text = unicodedata.normalize("NFD", text)
    return "".join(c for c in text if unicodedata.category(c) != "Mn")


def _decomposed(text: str, lowercase: bool) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return text.lower() if lowercase else text


def _albert_sources(text: str, lowercase: bool) -> list[int]:
    """Finds the index in `text` of each character of `normalize(text, lowercase, "albert")`."""
    characters: list[tuple[str, int]] = []
    for index, character in enumerate(text):
        last = characters[-1][0] if characters else " "
        if character.isspace():
            if last != " ":
                characters.append((" ", index))
        elif character in "`'" and last == character:
            characters[-1] = ('"', characters[-1][1])
        else:
            characters.append((character, index))
    if characters and characters[-1][0] == " ":
        characters.pop()
    # Context affects only the form of sigma, never the number of characters.
    return [index for c, index in characters for _ in _decomposed(c, lowercase)]


def read_model(path: epath.PathLike, special_tokens: SpecialTokens) -> bytes:
    """Reads a serialized model or the Unigram model of a tokenizer.json.

    It is changed so that text never becomes a special token except [UNK].
    """
    content = files.read_whole(path)
    if epath.Path(path).suffix == ".json":
        content = _from_unigram(json.loads(content), special_tokens)
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    tokens = around_pieces([piece.piece for piece in model.pieces], special_tokens)
    require_special_tokens(tokens, special_tokens, path)
    for piece in model.pieces:
        # ALBERT's models would map "[MASK]" in the text to the special token.
        if piece.piece in special_tokens.spellings and piece.type != _Piece.UNKNOWN:
            piece.type = _Piece.CONTROL
    return model.SerializeToString()


def _from_unigram(content: dict[str, Any], special_tokens: SpecialTokens) -> bytes:
    """Converts the pieces and rules of a tokenizer.json to a serialized SentencePiece model.

    If the special tokens go around the pieces of a model, the result leaves them out and begins
    with the three pieces <unk>, <s> and </s>.
    """
    model = content.get("model") or {}
    if model.get("type", "Unigram") != "Unigram" or "unk_id" not in model:
        raise ValueError("its model is not Unigram")
    normalizers = _steps(content.get("normalizer"), "normalizers")
    charsmaps = [s["precompiled_charsmap"] for s in normalizers if s["type"] == "Precompiled"]
    splitters = _steps(content.get("pre_tokenizer"), "pretokenizers")
    if len(charsmaps) != 1 or [s["type"] for s in splitters].count("Metaspace") != 1:
        raise ValueError("its normalizer or pre-tokenizer is not SentencePiece's")
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    proto.normalizer_spec.name = "precompiled"
    proto.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmaps[0])
    pieces = model["vocab"]
    unk = pieces[model["unk_id"]][0]
    specials = {t["content"] for t in content.get("added_tokens", ()) if t["special"]}
    specials |= {*special_tokens.first, *special_tokens.last, *special_tokens.spellings}
    if special_tokens.last:
        own = (unk, "<s>", "</s>")
        kept = [(piece, score) for piece, score in pieces if piece not in specials]
        pieces = [*((piece, 0.0) for piece in own), *kept]
    for index, (piece, score) in enumerate(pieces):
        kind = _Piece.CONTROL if piece in specials else _Piece.NORMAL
        if piece == unk:
            kind, proto.trainer_spec.unk_id = _Piece.UNKNOWN, index
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.unk_piece = unk
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString()


def _steps(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """Returns the steps of a sequence, or a single step as a list."""
    return [] if step is None else step.get(members, [step])


SENTENCEPIECE = Kind(
    SentencePieceTokenizer,
    read_model,
    {"lowercase": False, "sentencepiece_rules": "plain"},
    (MODEL_FILE, "sentencepiece.bpe.model", "spiece.model", LIBRARY_FILE),
)
