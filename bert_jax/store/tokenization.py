"""Tokenizes documents, one at a time or in several processes."""

import functools
import itertools
import os
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from bert_jax import tokenizers
from bert_jax.base.processes import worker_processes
from bert_jax.text.corpus import Document
from bert_jax.text.sentences import split_sentences
from bert_jax.text.sources import Place

# The size of the chunks that are sent to workers. Messages of this size cost little, and the
# chunks in flight need far less memory than a process.
CHUNK_CHARACTERS = 2**20
# The longest sentence; real ones are far shorter.
SENTENCE_CHARACTERS = 2**18
# The most text in flight, in chunks per worker.
_IN_FLIGHT = 3
# The accents of Latin, Greek and Cyrillic are U+0300 to U+036F.
_LAST_ACCENT = 0x36F


class TokenizedDocument(NamedTuple):
    """The tokens of a document.

    Attributes:
      place, is_heldout: See `Document`.
      tokens: The ids of all sentences, concatenated, int32 [T]; may be empty.
      counts: `tokens`; `unknown_tokens`; `characters` of the text; `lost_characters`, see
        `num_lost`; `heldout_tokens` and `heldout_characters`, 0 unless the document is held out.
      begins_word: Whether each token begins a word, bool [T]; None if its vocabulary entry
        determines that.
    """

    place: Place
    num_bytes: int
    tokens: np.ndarray
    sentence_lengths: np.ndarray
    counts: dict[str, int]
    begins_word: np.ndarray | None = None
    is_heldout: bool = False


def document_sentences(document: Document, language: str = "") -> list[str]:
    """Returns the sentences of a document by the rules of a language, or else of its own.

    A sentence of more than SENTENCE_CHARACTERS is divided, at the end of a word if it has one.
    """
    if document.is_split:
        sentences = document.text.split("\n")
    else:
        sentences = split_sentences(document.text, language or document.language)
    return list(itertools.chain.from_iterable(map(_divided, sentences)))


def _divided(sentence: str) -> Iterator[str]:
    at = 0
    while len(sentence) - at > SENTENCE_CHARACTERS:
        end = at + SENTENCE_CHARACTERS
        end = sentence.rfind(" ", at + 1, end) + 1 or end
        yield sentence[at:end].rstrip(" ")
        at = end
    yield sentence[at:]


def words_of_spaces(text: str, tokenizer: tokenizers.Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of a sentence, int32 [T], and whether each begins a word, bool [T].

    Spaces divide words.
    """
    ids_T, spans_Tx2 = tokenizer.encode_aligned(text)
    if not ids_T.size:
        return ids_T, np.zeros(0, bool)
    word_of_character = np.cumsum([character.isspace() for character in text])
    word_T = word_of_character[np.maximum(spans_Tx2[:, 0], spans_Tx2[:, 1] - 1)]
    return ids_T, np.append(True, np.diff(word_T) > 0)


def tokenize_documents(
    documents: Iterable[Document],
    tokenizer_directory: str | os.PathLike,
    num_processes: int,
    rules: tuple[str, str] = ("", "vocabulary"),
) -> Iterator[TokenizedDocument]:
    """Tokenizes a stream of documents, in order and in bounded memory.

    Args:
      num_processes: The number of worker processes, which does not affect the result. With 1,
        the calling process does the work.
      rules: `language` and `word_boundaries` of `config.data`.
    """
    if num_processes == 1:
        tokenizer = tokenizers.load(tokenizer_directory)
        for document in documents:
            yield _tokenize(document, tokenizer, rules)
        return
    with worker_processes(num_processes, _load_tokenizer, (str(tokenizer_directory),)) as pool:
        waiting: deque[tuple[Future, int]] = deque()
        max_size = _IN_FLIGHT * num_processes * CHUNK_CHARACTERS
        in_flight = 0
        for chunk in chunks(documents):
            size = sum(len(document.text) for document in chunk)
            waiting.append((pool.submit(_tokenize_chunk, chunk, rules), size))
            in_flight += size
            # Two documents may be in flight, however long they are.
            while in_flight >= max_size and len(waiting) > 1:
                future, size = waiting.popleft()
                in_flight -= size
                yield from future.result()
        while waiting:
            yield from waiting.popleft()[0].result()


def chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents into lists of at most CHUNK_CHARACTERS, or of one longer document."""
    chunk: list[Document] = []
    size = 0
    for document in documents:
        if chunk and size + len(document.text) > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
        chunk.append(document)
        size += len(document.text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _tokenize(
    document: Document, tokenizer: tokenizers.Tokenizer, rules: tuple[str, str]
) -> TokenizedDocument:
    text, (language, word_boundaries) = document.text, rules
    sentences, begins_word = document_sentences(document, language), None
    if word_boundaries == "spaces":
        pairs = [words_of_spaces(sentence, tokenizer) for sentence in sentences]
        ids = [ids_T for ids_T, _ in pairs]
        begins_word = np.concatenate([np.zeros(0, bool), *(flags_T for _, flags_T in pairs)])
    else:
        # Encoding takes up to 80 times the memory of the text.
        numbers = np.cumsum([0, *map(len, sentences)][:-1]) // SENTENCE_CHARACTERS
        ids = []
        for _, group in itertools.groupby(zip(numbers, sentences, strict=True), lambda x: x[0]):
            ids += tokenizer.encode_batch([sentence for _, sentence in group])
    lengths = np.array([len(ids_T) for ids_T in ids if len(ids_T)], np.int64)
    tokens = np.concatenate([np.zeros(0, np.int32), *ids])
    counts = {
        "tokens": len(tokens),
        "unknown_tokens": int(np.count_nonzero(tokens == tokenizer.unk_id)),
        "characters": len(text),
        "lost_characters": num_lost(text) if tokenizer.options.get("lowercase") else 0,
        "heldout_tokens": len(tokens) if document.is_heldout else 0,
        "heldout_characters": len(text) if document.is_heldout else 0,
    }
    size, place, is_heldout = len(text.encode()), document.place, document.is_heldout
    return TokenizedDocument(place, size, tokens, lengths, counts, begins_word, is_heldout)


def num_lost(text: str) -> int:
    """Counts the characters that lose a vowel sign or another mark to lower-casing.

    Many scripts, such as Devanagari and Thai, write vowels as marks, which are stripped like
    accents.
    """
    blocks = (text[first : first + 2**20] for first in range(0, len(text), 2**20))
    return sum(_num_lost(block) for block in blocks if not block.isascii())


def _num_lost(text: str) -> int:
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    found, counts = np.unique(codes[codes > _LAST_ACCENT], return_counts=True)
    return sum(n for c, n in zip(map(chr, found), counts.tolist(), strict=True) if _is_lost(c))


@functools.cache
def _is_lost(character: str) -> bool:
    parts = unicodedata.normalize("NFD", character)
    return any(unicodedata.category(c) == "Mn" and not "\u0300" <= c < "\u0370" for c in parts)


# The tokenizer of a worker process.
_tokenizer: tokenizers.Tokenizer


def _load_tokenizer(directory: str) -> None:
    global _tokenizer
    _tokenizer = tokenizers.load(directory)


def _tokenize_chunk(chunk: list[Document], rules: tuple[str, str]) -> list[TokenizedDocument]:
    return [_tokenize(document, _tokenizer, rules) for document in chunk]
