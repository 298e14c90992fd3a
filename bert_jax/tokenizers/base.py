"""The interface of all tokenizers, and their options file."""

import abc
import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from etils import epath
from tokenizers import AddedToken, normalizers

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.added import ADDED_FILE, AddedTokenFinder, added_content
from bert_jax.tokenizers.sequence import SequenceTemplate, TokenRow
from bert_jax.tokenizers.special_tokens import CONVENTIONS, MASK, SPECIAL_TOKENS, SpecialTokens
from bert_jax.tokenizers.vocabularies import is_placeholder

# Our options, beside the vocabulary.
OPTIONS_FILE = "bert_jax_tokenizer.json"
_CACHE_WORDS = 2**18


class WordCache(dict):
    """Remembers the results of a function of words, which take tens of megabytes.

    It can be pickled if the function can, without the results.
    """

    def __init__(self, function: Callable[[Any], Any]):
        super().__init__()
        self._function = function

    def __missing__(self, word: Any) -> Any:
        if len(self) == _CACHE_WORDS:
            self.clear()
        found = self[word] = self._function(word)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return WordCache, (self._function,)


class Tokenizer(abc.ABC):
    """Converts text to ids and back.

    Attributes:
      kind: A key of `factory.KINDS`.
      options: `kind` and the options of this kind. If the special tokens are not BERT's, also
        `special_tokens`, a key of CONVENTIONS.
      vocabulary_files: The content of each file of the vocabulary, by its name.
      tokens: The vocabulary in the order of its ids.
      ids: The id of each token.
      vocab_size: The number of tokens; every id is smaller.
      num_model_tokens: The same without tokens that were added after the vocabulary.
      special_tokens: The spellings and positions of the special tokens.
      pad_id, unk_id, cls_id, sep_id, mask_id: The ids of the five special tokens. Text never
        produces any of them except unk_id, even if it contains their spellings.
      special_ids: The same five ids.
      mask_takes_space: As in `special_tokens`, unless `with_added` has set it.
      added: The tokens that are found in a text before it is tokenized, by their ids.
      template: The positions of the special tokens in a sequence.
      is_word_start_V: bool [V]: whether a token begins a word, for whole-word masking. Special
        tokens count as words. True everywhere if that depends on the token before it; see
        `begins_word`.
      fingerprint: The hexadecimal sha256 of the vocabulary and the options.
    """

    kind: str
    # The mark of tokens that begin a word, or of those that end one, if there is one.
    word_start = word_end = ""

    def __init__(
        self,
        options: dict[str, Any],
        vocabulary: bytes,
        vocabulary_files: dict[str, bytes],
        tokens: Sequence[str],
        special_tokens: SpecialTokens,
    ):
        self.vocabulary_files = vocabulary_files
        self.options = {"kind": self.kind, **options}
        if special_tokens != SPECIAL_TOKENS:
            names = {tokens: name for name, tokens in CONVENTIONS.items()}
            self.options["special_tokens"] = names[special_tokens]
        self.tokens = list(tokens)
        self.vocab_size = self.num_model_tokens = len(tokens)
        self.special_tokens = special_tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.special_ids = tuple(self.ids[token] for token in special_tokens.spellings)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.template = SequenceTemplate(
            before=(self.cls_id,),
            between=(self.sep_id,) * special_tokens.num_separators,
            after=(self.sep_id,),
            num_segments=special_tokens.num_segments,
        )
        self.mask_takes_space = special_tokens.mask_takes_space
        self.added: dict[int, AddedToken] = {}
        self.is_word_start_V = np.array([self.is_word_start(t) for t in tokens], bool)
        self._ends_word_V = np.array([t.endswith(self.word_end) for t in tokens], bool)
        self._ends_word_V[list(self.special_ids)] = True
        self.fingerprint = self._model_fingerprint = hashlib.sha256(
            json.dumps(self.options, sort_keys=True).encode() + b"\0" + vocabulary
        ).hexdigest()

    def with_added(self, added: Mapping[int, AddedToken], path: epath.PathLike) -> Self:
        """Returns this tokenizer with tokens that are found in a text before it is tokenized.

        As in `transformers`, such a token is not split, and text beside it is tokenized by itself.

        Args:
          added: The tokens by their ids, which are those of the vocabulary or follow them. Of the
            five special tokens, only the mask is used: it sets `mask_takes_space`.
          path: The file or directory, for messages.
        """
        other = copy.copy(self)
        special, other.tokens, other.added = self.special_tokens, list(self.tokens), {}
        stored = {}
        for i, token in sorted(added.items()):
            if token.content == special.mask and token.lstrip != special.mask_takes_space:
                other.mask_takes_space = token.lstrip
                stored[i] = AddedToken(special.mask, lstrip=token.lstrip, special=True)
            if token.content in special.names:
                continue
            if i == len(other.tokens) and token.content not in other.ids:
                other.tokens.append(token.content)
            elif other.tokens[i : i + 1] != [token.content]:
                raise UserError(
                    f"{path}: the added token {token.content!r} has the id {i}, which must be its "
                    f"id in the vocabulary or, after its {len(self.tokens)} tokens, the next one"
                )
            other.added[i] = stored[i] = token
        if stored:
            content = added_content(stored)
            other.vocabulary_files = self.vocabulary_files | {ADDED_FILE: content}
            parts = self._model_fingerprint.encode() + content
            other.fingerprint = hashlib.sha256(parts).hexdigest()
        other.ids = {token: i for i, token in enumerate(other.tokens)}
        other.vocab_size = len(other.tokens)
        new = np.ones(other.vocab_size - self.vocab_size, bool)
        other.is_word_start_V = np.append(self.is_word_start_V, new)
        other.is_word_start_V[list(other.added)] = True  # A token that is found is a word.
        other._ends_word_V = np.append(self._ends_word_V, new)
        other._finder = AddedTokenFinder(other.added, self.normalizer)
        return other

    @property
    def normalizer(self) -> normalizers.Normalizer | None:
        """The part of the library that changes a text before added tokens are found in it."""
        return None

    @property
    def config_keys(self) -> dict[str, Any]:
        """The keys of `config.data` that describe the tokenizer, and their values."""
        options = {key: value for key, value in self.options.items() if key != "kind"}
        return {"tokenizer": self.kind, "lowercase": False, "special_tokens": "bert"} | options

    @property
    def num_unused(self) -> int:
        """The number of placeholders: "[unused0]", ..."""
        return sum(map(is_placeholder, self.tokens))

    def id_to_token(self, token_id: int) -> str:
        """Returns a token in readable form, with the mark of a word start."""
        return self.tokens[token_id]

    def piece_text(self, token_id: int) -> str:
        """Returns the text of a token without its mark: "the" for "Ġthe", "▁the" and "the</w>"."""
        token = self.id_to_token(token_id).replace("\n", "⏎")
        return token.lstrip(self.word_start).removesuffix(self.word_end) or "␣"

    def save(self, directory: epath.PathLike) -> None:
        """Writes a directory that `bert_jax.tokenizers.load` can read."""
        directory = files.checked_path(directory, "the tokenizer's directory")
        directory.mkdir(parents=True, exist_ok=True)
        self.save_vocabulary(directory)
        text = json.dumps(self.options, indent=2, sort_keys=True) + "\n"
        files.write_whole(directory / OPTIONS_FILE, text.encode())

    def save_vocabulary(self, directory: Path | epath.Path) -> None:
        for name, content in self.vocabulary_files.items():
            files.write_whole(directory / name, content)

    def words(self, text: str) -> list[str]:
        """Splits text into words that `word_pieces` takes, for kinds that can get more tokens."""
        raise NotImplementedError

    def word_pieces(self, word: str) -> list[int]:
        """Returns the ids of a word that `words` returns, or of a token."""
        raise NotImplementedError

    def is_word_start(self, token: str) -> bool:
        """Returns whether a token begins a word; True if that depends on the token before it."""
        return True

    def begins_word(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether each token of running text begins a word; bool, of the shape of `ids`."""
        if not self.word_end:
            return self.is_word_start_V[ids]
        begins = np.ones(ids.shape, bool)
        begins[..., 1:] = self._ends_word_V[ids[..., :-1]]
        return begins | np.isin(ids, self.special_ids)

    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes sentences, without special tokens around them.

        "[MASK]" and other special tokens in the text are plain text ('[', 'mask', ']'), never the
        special id.

        Returns:
          An int32 array of ids for each sentence.
        """
        if not self.added:
            return self._encode_batch(sentences)
        parts = [self._finder.parts(sentence) for sentence in sentences]
        texts = [
            sentence[start:end]
            for sentence, parts_of_sentence in zip(sentences, parts, strict=True)
            for start, end, i in parts_of_sentence
            if i is None
        ]
        encoded = iter(self._encode_batch(texts))
        return [
            np.concatenate(
                [next(encoded) if i is None else [i] for _, _, i in parts_of_sentence],
                dtype=np.int32,
            )
            for parts_of_sentence in parts
        ]

    @abc.abstractmethod
    def _encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes texts without added tokens; see `encode_batch`."""

    def join(
        self, a: np.ndarray, b: np.ndarray | None = None, *, max_length: int | None = None
    ) -> TokenRow:
        """Adds the special tokens to one text or two; see `SequenceTemplate.join`."""
        return self.template.join(a, b, max_length=max_length)

    def prompt_length(self, prompt: str, max_length: int | None) -> int:
        """Counts the tokens at the start of each row with a prompt, with those before it.

        The prompt is tokenized alone, as in sentence-transformers, also where its last token would
        be another one before a text.
        """
        row = self.join(self.encode_batch([prompt])[0], max_length=max_length)
        return len(row.input_ids_L) - bool(self.template.after) if prompt else 0

    def unknown_fraction(self, input_ids: np.ndarray) -> float:
        """Returns the fraction of unknown tokens; special tokens do not count."""
        # There may be very many: each count needs a byte for each.
        counts = {
            id_: np.count_nonzero(input_ids == id_) for id_ in (*self.special_ids, self.unk_id)
        }
        num_unknown = counts.pop(self.unk_id)
        num_text = input_ids.size - sum(counts.values())
        return num_unknown / num_text if num_text else 0.0

    def encode_masked(self, sentence: str) -> np.ndarray:
        """Tokenizes a sentence with masks: "[MASK]", or the vocabulary's own, such as "<mask>".

        Returns:
          The ids, int32 [T], with `mask_id` for each mask.
        """
        first, *others = self.encode_parts(self.split_at_masks(sentence))
        mask = np.array([self.mask_id], np.int32)
        return np.concatenate([first, *(ids for part in others for ids in (mask, part))])

    def split_at_masks(self, sentence: str) -> list[str]:
        """Splits a sentence into the parts before, between and after its masks."""
        return sentence.replace(self.special_tokens.mask, MASK).split(MASK)

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes the parts of a sentence between its masks; the ids of each are int32 [T]."""
        if self.mask_takes_space:
            parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        return self.encode_batch(parts)

    def encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokenizes a text and finds each piece in it.

        Returns:
          The ids that `encode_batch` gives, int32 [T]; and spans (start, end), int32 [T, 2]: piece
          t stands for text[start:end]. Starts and ends never decrease. Pieces of a single character
          (such as a Hangul syllable) have the same span. Stripped accents belong to the piece
          before them.
        """
        if not self.added:
            return self._encode_aligned(text)
        ids, spans = [], []
        for start, end, i in self._finder.parts(text):
            part_ids, part_spans = [i], np.array([[0, end - start]])
            if i is None:
                part_ids, part_spans = self._encode_aligned(text[start:end])
            ids.append(part_ids)
            spans.append(part_spans + start)
        return np.concatenate(ids, dtype=np.int32), np.concatenate(spans, dtype=np.int32)

    @abc.abstractmethod
    def _encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokenizes a text without added tokens; see `encode_aligned`."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Converts ids to text, with special tokens spelled out."""


class Kind(NamedTuple):
    """A kind of tokenizer, as a config names it; see `factory.KINDS`.

    Attributes:
      tokenizer: Makes a tokenizer from a vocabulary and options.
      read: Reads a vocabulary from its files.
      options: The names of the options, with their defaults.
      names: The names that a vocabulary file may have; `Tokenizer.save` writes the first.
      companion: The name of a second file that belongs to a file with the last name.
    """

    tokenizer: Callable[..., Tokenizer]
    read: Callable[..., Any]
    options: Mapping[str, Any]
    names: tuple[str, ...]
    companion: str = ""

    def own(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the options of this kind; missing ones get their defaults."""
        return {key: options.get(key, default) for key, default in self.options.items()}
