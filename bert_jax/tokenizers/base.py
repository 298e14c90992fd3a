"""The interface of all tokenizers, and their options file."""

import abc
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tokenizers.sequence import SequenceTemplate, TokenRow


class SpecialTokens(NamedTuple):
    """The spellings of the special tokens in a vocabulary; BERT's are the defaults."""

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"


SPECIAL_TOKENS = SpecialTokens()
MASK = SPECIAL_TOKENS.mask
OPTIONS_FILE = "tokenizer.json"


class Tokenizer(abc.ABC):
    """Converts text to ids and back.

    Attributes:
      kind: "wordpiece" or "sentencepiece".
      options: `kind` and the options of its kind; special tokens only if they are not BERT's.
      tokens: The vocabulary in the order of its ids.
      vocab_size: The number of entries; every id is below it.
      special_tokens: The spellings of the special tokens.
      pad_id, unk_id, cls_id, sep_id, mask_id: The five special tokens. Text never
        produces any of them except unk_id, even if it contains their spellings.
      special_ids: The same five ids.
      template: The places of the special tokens in a sequence.
      is_word_start_V: bool [V]: whether the entry begins a word, for whole-word masking.
        Special tokens count as words.
      fingerprint: The hexadecimal sha256 of the vocabulary and the options.
    """

    kind: str

    def __init__(
        self,
        options: dict[str, Any],
        vocabulary: bytes,
        tokens: Sequence[str],
        special_tokens: SpecialTokens = SPECIAL_TOKENS,
    ):
        self.options = {"kind": self.kind, **options}
        if special_tokens != SPECIAL_TOKENS:
            self.options["special_tokens"] = list(special_tokens)
        self.tokens = list(tokens)
        self.vocab_size = len(tokens)
        self.special_tokens = special_tokens
        ids = {token: i for i, token in enumerate(tokens)}
        self.special_ids = tuple(ids[token] for token in special_tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.template = SequenceTemplate(
            before=(self.cls_id,), between=(self.sep_id,), after=(self.sep_id,)
        )
        self.is_word_start_V = np.array([self.is_word_start(t) for t in tokens], bool)
        self.fingerprint = hashlib.sha256(
            json.dumps(self.options, sort_keys=True).encode() + b"\0" + vocabulary
        ).hexdigest()

    @property
    def num_unused(self) -> int:
        """The number of entries that only fill up the vocabulary: "[unused0]", ..."""
        return sum(token.startswith("[unused") for token in self.tokens)

    def id_to_token(self, token_id: int) -> str:
        return self.tokens[token_id]

    def save(self, directory: epath.PathLike, options_file: str = OPTIONS_FILE) -> None:
        """Writes a directory that `bert_jax.tokenizers.load` can read.

        Args:
          directory: Created if it does not exist.
          options_file: The name of the file for the options.
        """
        directory = files.open_path(directory, "the tokenizer's directory")
        directory.mkdir(parents=True, exist_ok=True)
        self.save_vocabulary(directory)
        text = json.dumps(self.options, indent=2, sort_keys=True) + "\n"
        (directory / options_file).write_bytes(text.encode())

    @abc.abstractmethod
    def is_word_start(self, token: str) -> bool:
        """Returns whether a vocabulary entry begins a word."""

    @abc.abstractmethod
    def encode_batch(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Returns an int32 array of ids for each sentence; no special tokens are added.

        "[MASK]" in the text is plain text ('[', 'mask', ']'), never the special id.
        """

    def join(
        self, a: np.ndarray, b: np.ndarray | None = None, *, max_length: int | None = None
    ) -> TokenRow:
        """Puts the special tokens around one text or two; see `SequenceTemplate.join`."""
        return self.template.join(a, b, max_length=max_length)

    def encode_masked(self, sentence: str) -> np.ndarray:
        """Returns the ids of a sentence, int32 [T], in which "[MASK]" is the mask token."""
        first, *others = self.encode_parts(sentence.split(MASK))
        mask = np.array([self.mask_id], np.int32)
        return np.concatenate([first, *(ids for part in others for ids in (mask, part))])

    def encode_parts(self, parts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of each part of a sentence that is interrupted by masks."""
        return self.encode_batch(parts)

    @abc.abstractmethod
    def encode_aligned(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids that `encode_batch` gives, and their places in the text.

        Returns:
          The ids, int32 [T]; and the characters, int32 [T, 2]: piece t stands for
          text[start:end]. Starts and ends never decrease. Pieces of one character (such as
          half a Hangul syllable) have the same span. Stripped accents belong to the piece before
          them.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of these ids, with special tokens spelled out."""

    @abc.abstractmethod
    def save_vocabulary(self, directory: Path | epath.Path) -> None:
        """Writes vocab.txt or sentencepiece.model into a directory."""


def read_vocabulary_file(path: epath.PathLike) -> bytes:
    """Returns the content of a vocab.txt or SentencePiece model."""
    try:
        return files.open_path(path, "the vocabulary").read_bytes()
    except OSError as e:
        reason = e.strerror or "no such file"
        raise UserError(f"cannot read the vocabulary {path}: {reason}") from None


def require_special_tokens(
    tokens: Sequence[str], special_tokens: SpecialTokens, path: epath.PathLike
) -> None:
    """Raises UserError if the vocabulary lacks special tokens."""
    missing = [token for token in special_tokens if token not in tokens]
    if missing:
        raise UserError(f"the vocabulary {path} has no {' '.join(missing)}, which BERT needs")
