"""Plans a pass over the token store in windows, each planned independently.

An epoch is planned in *blocks*, which are runs of consecutive documents. Each epoch has its own
order of the blocks. Blocks that are adjacent in that order form *windows* of about
`shuffle_sentences` sentences, whose rows are shuffled together. All randomness is keyed by (seed,
stage, epoch, block or window).

`join_spans` reads the planned spans and puts special tokens around them.
"""

import abc
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bert_jax.base.batch import ENCODER_FIELDS, BatchFields
from bert_jax.batches.random_keys import BLOCK_ORDER_TAG, PLAN_TAG, SHUFFLE_TAG, keyed_generator

BLOCKS_PER_WINDOW = 16


class Block(NamedTuple):
    """The part of the store's index that belongs to one block.

    Attributes:
      first_document: The number of the block's first document in the store.
      document_starts: int64 [D+1], the first sentence of each document, counted within the block.
      sentence_starts: int64 [S+1], the token of the store at which each sentence begins.
    """

    first_document: int
    document_starts: np.ndarray
    sentence_starts: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1


class WindowedRows(abc.ABC):
    """The base class of row builders. Subclasses plan and assemble the rows of a block.

    A *plan* is a NamedTuple of equally long arrays, one element per row. The first array is the
    token position of each row's first token. Only the builder that made a plan uses the others.

    Args:
      store: The token store: `num_documents`, `document_starts` (int64 [D+1]),
        `sentence_starts` (int64 [S+1]), `tokens_at(positions)`. No sentence and no document is
        empty.
      tokenizer: Has the ids of the special tokens.
      spec: A `StreamSpec`.

    Attributes:
      fields: The arrays that `assemble` returns.
    """

    fields: ClassVar[BatchFields] = ENCODER_FIELDS

    def __init__(self, store, tokenizer, spec):
        self.store, self.tokenizer, self.spec = store, tokenizer, spec
        # Plain int64 views of the memory maps: searchsorted would copy anything else.
        self.document_starts = np.asarray(store.document_starts, dtype=np.int64)
        self.sentence_starts = np.asarray(store.sentence_starts, dtype=np.int64)
        block_sentences = max(1, spec.shuffle_sentences // BLOCKS_PER_WINDOW)
        # A block begins with the first document at or after each multiple of its size; a
        # longer document closes its block.
        grid = np.arange(0, self.document_starts[-1], block_sentences)
        firsts = np.searchsorted(self.document_starts[:-1], grid)
        firsts = np.unique(firsts[firsts < store.num_documents])
        self._block_starts = np.append(firsts, store.num_documents)
        self._epoch_windows: tuple[int, list[np.ndarray]] = (-1, [])

    @abc.abstractmethod
    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        """Returns the number of rows of `plan_block` for the same arguments."""

    @abc.abstractmethod
    def plan_block(self, block: Block, rng: np.random.Generator) -> Any:
        """Plans the rows of a block, in any order."""

    @abc.abstractmethod
    def assemble(self, plan: Any) -> dict[str, np.ndarray]:
        """Reads the planned rows from the store; returns the arrays of `fields`."""

    def describe(self, plan: Any) -> list[list[int]]:
        """Returns [document, sentence in it] of each row's first token."""
        return np.stack(self.locate(plan[0]), axis=1).tolist()

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Returns the blocks of each window of the epoch, in the order of the stream."""
        cached_epoch, windows = self._epoch_windows
        if cached_epoch != epoch:
            rng = self._generator(epoch, 0, BLOCK_ORDER_TAG)
            order = rng.permutation(len(self._block_starts) - 1)
            block_sentences = np.diff(self.document_starts[self._block_starts])[order]
            before = np.cumsum(block_sentences) - block_sentences
            # A window closes at the first block that begins after `shuffle_sentences` sentences.
            closes = np.flatnonzero(np.diff(before // self.spec.shuffle_sentences)) + 1
            windows = np.split(order, closes)
            self._epoch_windows = (epoch, windows)
        return windows

    def planned_blocks(self) -> Iterator[tuple[Block, Any]]:
        """Plans the blocks of the first epoch one by one, in the order of the stream."""
        for number in itertools.chain.from_iterable(self.windows(0)):
            block, rng = self._block(0, number)
            yield block, self.plan_block(block, rng)

    def count(self, epoch: int, window: int) -> int:
        """Counts the rows of a window; this is cheaper than planning it."""
        return sum(self.count_block(*self._block(epoch, b)) for b in self.windows(epoch)[window])

    def plan(self, epoch: int, window: int) -> Any:
        """Plans the rows of a window, shuffled."""
        parts = [self.plan_block(*self._block(epoch, b)) for b in self.windows(epoch)[window]]
        joined = concatenate_rows(parts)
        order = self._generator(epoch, window, SHUFFLE_TAG).permutation(len(joined[0]))
        return select_rows(joined, order)

    def locate(self, positions_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns each token position's document and its sentence within it; both int64 [N]."""
        sentence_N = np.searchsorted(self.sentence_starts, positions_N, side="right") - 1
        document_N = np.searchsorted(self.document_starts, sentence_N, side="right") - 1
        return document_N, sentence_N - self.document_starts[document_N]

    def _generator(self, epoch: int, part: int, tag: int) -> np.random.Generator:
        return keyed_generator(self.spec.seed, self.spec.stage, epoch, part, tag)

    def _block(self, epoch: int, block: int) -> tuple[Block, np.random.Generator]:
        first, stop = self._block_starts[block], self._block_starts[block + 1]
        document_starts = self.document_starts[first : stop + 1]
        sentences = slice(document_starts[0], document_starts[-1] + 1)
        index = Block(
            int(first),
            document_starts - document_starts[0],
            # A copy in memory, small enough for the caches.
            np.array(self.sentence_starts[sentences]),
        )
        return index, self._generator(epoch, int(block), PLAN_TAG)


def select_rows(plan: Any, selection: Any) -> Any:
    """Returns the rows of a plan that `selection` (a slice or indices) selects."""
    return type(plan)(*(column[selection] for column in plan))


def concatenate_rows(plans: Sequence[Any]) -> Any:
    """Returns the rows of all plans as one plan."""
    return type(plans[0])(*map(np.concatenate, zip(*plans, strict=True)))


def target_lengths(
    rng: np.random.Generator, num_documents: int, max_num_tokens: int, short_seq_prob: float
) -> np.ndarray:
    """Draws the target length of each document's rows, int64 [D]."""
    coin_D, size_D = rng.random((2, num_documents))
    short_D = 2 + (size_D * (max_num_tokens - 1)).astype(np.int64)
    return np.where(coin_D < short_seq_prob, short_D, max_num_tokens)


def gather_sentences(
    block: Block,
    target_D: np.ndarray,
    divide: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, tuple[np.ndarray, ...]]],
) -> tuple[np.ndarray, ...]:
    """Cuts the documents of a block into chunks of whole sentences.

    Each iteration cuts one chunk from every document that has sentences left. The longest
    document therefore determines the number of iterations.

    Args:
      target_D: int64 [D], at least 1: a chunk ends at the first sentence boundary at or beyond
        this many tokens, or with its document.
      divide: Takes the first sentence of each chunk and the sentence after its last; returns
        where the document's next chunk begins, and further columns of the chunks.

    Returns:
      int64 [N] each: the chunk's document, its first sentence, and the sentence after its last;
      then the columns of `divide`. The chunks of a document are in text order. All indices
      count within the block.
    """
    sentence_starts = block.sentence_starts
    document = np.arange(block.num_documents)
    first, stop, target = block.document_starts[:-1], block.document_starts[1:], target_D
    turns: list[tuple[np.ndarray, ...]] = []
    while document.size:
        end = np.searchsorted(sentence_starts, sentence_starts[first] + target)
        end = np.minimum(end, stop)
        following, columns = divide(first, end)
        turns.append((document, first, end, *columns))
        left = following < stop
        document, stop, target, first = document[left], stop[left], target[left], following[left]
    return tuple(map(np.concatenate, zip(*turns, strict=True)))


class Span(NamedTuple):
    """One span of the token store for each of B rows."""

    start_B: np.ndarray  # int64
    length_B: np.ndarray  # any integer dtype


def join_spans(
    store, tokenizer, width: int, a: Span, b: Span | None = None
) -> dict[str, np.ndarray]:
    """Returns rows of `before A between B after`, the fields of the encoder.

    A row whose B is empty is `before A after`. Token types are 1 from B to the end, or all 0 if the
    tokenizer has one segment.

    Args:
      store: Has `tokens_at(positions)`.
      tokenizer: Its `template` defines the special tokens.
      width: L; the text and the special tokens of each row must fit.
      a, b: The spans; A is not empty.

    Returns:
      `ENCODER_FIELDS`, int32 [B, L].
    """
    template, num_rows = tokenizer.template, len(a.start_B)
    column_L = np.arange(width, dtype=np.int64)
    origin_BxL = np.zeros((num_rows, width), np.int64)
    is_text_BxL = np.zeros((num_rows, width), bool)
    ids_BxL = np.full((num_rows, width), tokenizer.pad_id, np.int32)
    column_B = np.zeros(num_rows, np.int64)

    def add_tokens(ids: tuple[int, ...], row: np.ndarray) -> None:
        for token_id in ids:
            ids_BxL[row, column_B[row]] = token_id
            column_B[row] += 1

    def add_text(span: Span) -> None:
        first_Bx1, end_Bx1 = column_B[:, None], (column_B + span.length_B)[:, None]
        inside_BxL = (column_L >= first_Bx1) & (column_L < end_Bx1)
        np.copyto(origin_BxL, span.start_B[:, None] - first_Bx1, where=inside_BxL)
        np.logical_or(is_text_BxL, inside_BxL, out=is_text_BxL)
        column_B[:] = end_Bx1[:, 0]

    every_row, b_first_B = np.arange(num_rows), np.full(num_rows, width)
    add_tokens(template.before, every_row)
    add_text(a)
    if b is not None:
        has_b = np.flatnonzero(b.length_B)
        add_tokens(template.between, has_b)
        b_first_B[has_b] = column_B[has_b]
        add_text(b)
    add_tokens(template.after, every_row)
    ids_BxL[is_text_BxL] = store.tokens_at((origin_BxL + column_L)[is_text_BxL])
    is_real_BxL = column_L < column_B[:, None]
    token_type_ids_BxL = np.zeros_like(ids_BxL)
    if b is not None and template.num_segments == 2:
        token_type_ids_BxL[:] = (column_L >= b_first_B[:, None]) & is_real_BxL
    return {
        "input_ids": ids_BxL,
        "token_type_ids": token_type_ids_BxL,
        "attention_mask": is_real_BxL.astype(np.int32),
    }
