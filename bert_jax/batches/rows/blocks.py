"""Divides the documents of a token store into blocks, which never cross the parts of the store."""

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

BLOCKS_PER_WINDOW = 16
# A block with fewer sentences would have few rows. The last of them may be short.
_LEAST_SENTENCES = 1024
# A clause often ends with one of these.
_CLAUSE_MARKS = ",;:)—–،؛、，；："


class Pool(NamedTuple):
    """The D documents that a random one is drawn from.

    Attributes:
      first_D, stop_D: int64, the first sentence of each document and the one after its last:
        indices into `sentence_starts`.
      sentence_starts: int64, the token of the store at which each sentence begins, ascending.
    """

    first_D: np.ndarray
    stop_D: np.ndarray
    sentence_starts: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.first_D)


class Block(NamedTuple):
    """The part of the store's index that belongs to one block.

    Attributes:
      document_starts: int64 [D+1], the first sentence of each document, counted within the block.
      sentence_starts: int64 [S+1], the token of the store at which each sentence begins.
      pool: The documents that random ones are drawn from, with those of the block among them.
      first_in_pool: The index of the block's first document in `pool`.
    """

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    pool: Pool
    first_in_pool: int

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1


class Blocks:
    """The blocks of a store, numbered in the order of the text. No block is empty.

    In a store of one part, a block begins with the first document at or after each multiple of the
    size of a block; a longer document closes its block. Otherwise all blocks of a part are about
    equally long. Their number follows from the size of the part, which need not be opened.

    Args:
      store: A `TokenStore`.
      window_sentences: The approximate number of sentences in a window. A block has a sixteenth of
        them, or less in a small source, so that every window has blocks of it.
      max_sentence_tokens, tokenizer: See `divide_sentences`; 0 divides none.

    Attributes:
      sentences_B: int64, the sentences of each block; an upper bound if there are several parts.
      source_B: int64, the source of each block, an index of `sources`.
      sources: The names of the sources; a single empty name if they have none.
      tokens: The number of tokens of each source, by name.
    """

    def __init__(self, store, window_sentences: int, *, max_sentence_tokens: int, tokenizer):
        self._store, self._whole, self._cuts = store, None, None
        self._divide = functools.partial(
            divide_sentences, max_sentence_tokens, functools.partial(_cut_quality, store, tokenizer)
        )
        self.sources = list(dict.fromkeys(store.sources))
        source_P = np.array([self.sources.index(name) for name in store.sources])
        documents_P, sentences_P, tokens_P = map(np.diff, store.starts)
        sentences_S, tokens_S = (np.bincount(source_P, n) for n in (sentences_P, tokens_P))
        self.tokens = dict(zip(self.sources, map(int, tokens_S), strict=True))
        # Each window has a block of each source at least.
        num_windows = max(1, store.num_sentences // window_sentences)
        block_sentences = max(1, window_sentences // BLOCKS_PER_WINDOW)
        in_window_S = sentences_S.astype(np.int64) // num_windows
        # With several blocks of a source in a window, the share of the source varies less between
        # windows. Blocks of several parts would need more open files.
        several_S = np.maximum(in_window_S // BLOCKS_PER_WINDOW, _LEAST_SENTENCES)
        size_S = np.where(
            np.bincount(source_P) == 1, np.minimum(in_window_S, several_S), in_window_S
        )
        size_S = np.clip(size_S, 1, block_sentences)
        size_P = size_S[source_P]
        if store.num_parts == 1:
            index = store.part(0)
            starts = index.document_starts
            firsts = np.searchsorted(starts[:-1], np.arange(0, starts[-1], block_sentences))
            firsts = np.unique(firsts[firsts < store.num_documents])
            self._cuts = np.append(firsts, store.num_documents)
            self.sentences_B = np.diff(starts[self._cuts])
            self._starts = np.array([0, len(firsts)])
            # Random documents are drawn from the whole store.
            starts, sentences = self._divide(starts, index.sentence_starts)
            self._whole = Pool(starts[:-1], starts[1:], sentences)
        else:
            number_P = np.minimum(documents_P, -(-sentences_P // size_P))
            self._starts = np.append(0, np.cumsum(number_P))
            self.sentences_B = np.repeat(size_P, number_P)
        self.source_B = np.repeat(source_P, np.diff(self._starts))

    def read(self, numbers: Sequence[int], pool: Sequence[int]) -> Iterator[Block]:
        """Reads blocks one by one.

        Args:
          numbers: The blocks.
          pool: The blocks that random documents are drawn from if the store has several parts.
        """
        if self._whole:
            for number in numbers:
                first_document, *index = self._read(number)
                yield Block(*index, self._whole, first_document)
            return
        # To open a part in object storage takes several requests.
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._store.part, {self._part_of(number) for number in pool}))
        offsets, indexes, firsts, stops = {}, {}, [], []
        num_documents = num_sentences = 0
        # In the order of the text, so that the positions in a pool are ascending.
        for number in sorted(pool):
            _, documents, starts = self._read(number)
            indexes[number] = documents, starts
            offsets[number] = num_documents
            firsts.append(documents[:-1] + num_sentences)
            stops.append(documents[1:] + num_sentences)
            num_documents += len(documents) - 1
            num_sentences += len(starts)
        starts = [starts for _, starts in indexes.values()]
        joined = Pool(*map(np.concatenate, (firsts, stops, starts)))
        for number in numbers:
            yield Block(*indexes[number], joined, offsets[number])

    def _read(self, number: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns the first document of a block, its document starts and its sentence starts."""
        part = self._part_of(number)
        index = self._store.part(part)
        cuts = self._cuts if self._cuts is not None else self._cut(part, index.document_starts)
        first, stop = cuts[number - self._starts[part] :][:2]
        document_starts = index.document_starts[first : stop + 1]
        sentences = slice(document_starts[0], document_starts[-1] + 1)
        # Copies in memory, small enough for the caches.
        return (
            int(self._store.starts.documents[part] + first),
            *self._divide(
                document_starts - document_starts[0],
                index.sentence_starts[sentences] + self._store.starts.tokens[part],
            ),
        )

    def _part_of(self, number: int) -> int:
        return int(np.searchsorted(self._starts, number, side="right")) - 1

    def _cut(self, part: int, document_starts: np.ndarray) -> np.ndarray:
        """Returns the first document of each block of one of several parts, and the end."""
        num_blocks = self._starts[part + 1] - self._starts[part]
        num_documents, order = len(document_starts) - 1, np.arange(num_blocks)
        firsts = np.searchsorted(document_starts, order * document_starts[-1] // num_blocks)
        # A block begins after the block before it and leaves a document for each one after it.
        firsts = np.maximum.accumulate(firsts - order) + order
        return np.append(np.minimum(firsts, num_documents - num_blocks + order), num_documents)


def divide_sentences(
    max_tokens: int,
    quality_at: Callable[[np.ndarray], np.ndarray],
    document_starts: np.ndarray,
    sentence_starts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Divides long sentences into parts, which count as sentences and follow each other.

    The parts of a sentence are about equally long. Each begins at the best place within a quarter
    of `max_tokens`.

    Args:
      max_tokens: The largest number of tokens of a part; 0 divides nothing.
      quality_at: Returns how well a part may begin at each position, int of the shape of the
        positions, int64 [C, W]; larger is better.
      document_starts: int64 [D+1], the first sentence of each document.
      sentence_starts: int64 [S+1], the first token of each sentence.

    Returns:
      `document_starts` [D+1] and `sentence_starts` [P+1] of the parts.
    """
    lengths_S = np.diff(sentence_starts)
    if not max_tokens or lengths_S.max(initial=0) <= max_tokens:
        return document_starts, sentence_starts
    slack = max_tokens // 4
    parts_S = np.where(lengths_S > max_tokens, -(-lengths_S // (max_tokens - slack)), 1)
    first_S1 = np.append(0, np.cumsum(parts_S))
    place_P = np.arange(first_S1[-1]) - np.repeat(first_S1[:-1], parts_S)
    offset_P = place_P * np.repeat(lengths_S, parts_S) // np.repeat(parts_S, parts_S)
    starts_P = np.repeat(sentence_starts[:-1], parts_S) + offset_P
    cut_C = starts_P[place_P > 0]
    starts_P[place_P > 0] -= quality_at(cut_C[:, None] - np.arange(slack + 1)).argmax(axis=1)
    return first_S1[document_starts], np.append(starts_P, sentence_starts[-1])


def _cut_quality(store, tokenizer, positions: np.ndarray) -> np.ndarray:
    """Returns 2 where a word follows the end of a clause, 1 where another begins, and else 0."""
    ids, previous = store.tokens_at(positions), store.tokens_at(positions - 1)
    if store.has_words:
        begins = store.word_starts_at(positions)
    else:
        begins = tokenizer.begins_word(np.stack([previous, ids], axis=-1))[..., 1]
    marks = [mark + tokenizer.word_end for mark in _CLAUSE_MARKS]
    clause_ends = [tokenizer.ids[mark] for mark in marks if mark in tokenizer.ids]
    return begins * (1 + np.isin(previous, clause_ends) - np.isin(ids, clause_ends))
