"""Plans a pass over the token store in windows, each planned independently.

An epoch is planned in *blocks*, which are runs of consecutive documents (`rows.blocks`). Each epoch
has its own order of the blocks. Blocks that are adjacent in that order form *windows* of about
`shuffle_sentences` sentences, whose rows are shuffled together. All randomness is keyed by (seed,
stage, epoch, block or window).

`WindowedRows.join` reads the planned spans and puts special tokens around them.
"""

import abc
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from bert_jax.base.batch import ENCODER_FIELDS, BatchFields
from bert_jax.batches.random_keys import (
    BLOCK_ORDER_TAG,
    PLAN_TAG,
    REPEAT_TAG,
    SHUFFLE_TAG,
    keyed_generator,
)
from bert_jax.batches.rows.blocks import Block, Blocks
from bert_jax.text.named_sources import REPEAT_UNIT, repeats


class Span(NamedTuple):
    """One span of the token store for each of B rows."""

    start_B: np.ndarray  # int64
    length_B: np.ndarray  # any integer dtype


class WindowedRows(abc.ABC):
    """The base class of row builders. Subclasses plan and assemble the rows of a block.

    A *plan* is a NamedTuple of equally long arrays, one element per row. The first array is the
    token position of each row's first token. Only the builder that made a plan uses the others.

    Sentences that are longer than `longest_sentence` of a row are divided before they are planned
    (`config.data.max_sentence_tokens`). No token of the store is out of reach: each is in a row of
    every epoch, or, of builders that truncate, of most epochs.
    `tests/batches/rows/test_divided_sentences.py` tests this for every builder of `ROWS`.

    A builder whose rows can be packed (`batches.packing`) has a method `lengths(plan)`, which
    returns the number of tokens in each row, special ones included.

    Args:
      store: A `TokenStore`. No sentence and no document is empty.
      tokenizer: Has the ids of the special tokens.
      spec: A `StreamSpec`.

    Attributes:
      fields: The arrays that `assemble` returns.
      is_pair: Whether two sentences in a row have the special tokens of a pair.
      longest_sentence: A fraction of the room of a row. If rows are truncated, the middle of longer
        sentences would be in all rows, and their ends in none.
    """

    fields: ClassVar[BatchFields] = ENCODER_FIELDS
    is_pair: ClassVar[bool] = False
    longest_sentence: ClassVar[float] = 1.0

    def __init__(self, store, tokenizer, spec):
        self.store, self.tokenizer, self.spec = store, tokenizer, spec
        self.tokens_at = store.tokens_at
        num_special = tokenizer.template.num_special(is_pair=self.is_pair)
        self._max_num_tokens = spec.max_seq_length - num_special
        self._blocks = Blocks(
            store,
            spec.shuffle_sentences,
            max_sentence_tokens=min(
                spec.max_sentence_tokens, int(self.longest_sentence * self._max_num_tokens)
            ),
            tokenizer=tokenizer,
        )
        self._repeats = repeats(self._blocks.tokens, spec.sampling_exponent, spec.source_weights)
        self._epoch_windows: tuple[int, tuple[list[np.ndarray], ...]] = (-1, ())

    @abc.abstractmethod
    def count_block(self, block: Block, rng: np.random.Generator) -> int:
        """Returns the number of rows of `plan_block` for the same arguments."""

    @abc.abstractmethod
    def plan_block(self, block: Block, rng: np.random.Generator) -> Any:
        """Plans the rows of a block, in any order."""

    @abc.abstractmethod
    def assemble(self, plan: Any) -> dict[str, np.ndarray]:
        """Reads the planned rows with `tokens_at`; returns the arrays of `fields`."""

    def reading(self, tokens_at: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Returns the builder with other values than the ids of tokens, such as marks of words.

        Args:
          tokens_at: Returns the values at some positions, as `TokenStore.tokens_at` does.
        """
        rows = copy.copy(self)
        rows.tokens_at = tokens_at
        return rows

    def windows(self, epoch: int) -> list[np.ndarray]:
        """Returns the blocks of each window of the epoch, in the order of the stream."""
        return self._windows(epoch)[0]

    def _windows(self, epoch: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Returns the blocks of each window, and how often the epoch has read each before."""
        cached_epoch, windows = self._epoch_windows
        if cached_epoch != epoch:
            block_N = self._order(epoch)
            block_sentences = self._blocks.sentences_B[block_N]
            before = np.cumsum(block_sentences) - block_sentences
            # A window closes at the first block that begins after `shuffle_sentences` sentences.
            closes = np.flatnonzero(np.diff(before // self.spec.shuffle_sentences)) + 1
            windows = np.split(block_N, closes), np.split(occurrences(block_N), closes)
            self._epoch_windows = (epoch, windows)
        return windows

    def _order(self, epoch: int) -> np.ndarray:
        """Returns the blocks of an epoch, int64 [N]. Each source is spread evenly over it."""
        rng = self._generator(epoch, 0, BLOCK_ORDER_TAG)
        orders, places = [], []
        for source, name in enumerate(self._blocks.sources):
            own_B = np.flatnonzero(self._blocks.source_B == source)
            # Over several epochs, each block is read equally often, whatever the repeats are.
            rank_B = self._generator(0, source, REPEAT_TAG).permutation(len(own_B))
            phase_B = (2 * rank_B + 1) * REPEAT_UNIT // (2 * len(own_B))
            until, since = (
                (number * self._repeats[name] + phase_B) // REPEAT_UNIT
                for number in (epoch + 1, epoch)
            )
            order = rng.permutation(np.repeat(own_B, until - since))
            orders.append(order)
            places.append((np.arange(len(order)) + rng.random()) / max(1, len(order)))
        return np.concatenate(orders)[np.argsort(np.concatenate(places), kind="stable")]

    def sources(self) -> dict[str, dict[str, float]]:
        """Returns the `tokens` of each source and its `repeats` in an epoch, by name."""
        return {
            name: {"tokens": tokens, "repeats": self._repeats[name] / REPEAT_UNIT}
            for name, tokens in self._blocks.tokens.items()
        }

    def planned_blocks(self) -> Iterator[tuple[Block, Any]]:
        """Plans the blocks of the first epoch one by one, in the order of the stream."""
        for window in range(len(self.windows(0))):
            for block, rng in self._read(0, window):
                yield block, self.plan_block(block, rng)

    def count(self, epoch: int, window: int) -> int:
        """Counts the rows of a window; this is cheaper than planning it."""
        return sum(self.count_block(block, rng) for block, rng in self._read(epoch, window))

    def plan(self, epoch: int, window: int) -> Any:
        """Plans the rows of a window, shuffled."""
        parts, spans = [], []
        for block, rng in self._read(epoch, window):
            parts.append(self.plan_block(block, rng))
            spans.append(tuple(block.sentence_starts[[0, -1]].tolist()))
        self.store.fetch(spans)
        joined = concatenate_rows(parts)
        order = self._generator(epoch, window, SHUFFLE_TAG).permutation(len(joined[0]))
        return select_rows(joined, order)

    def join(self, a: Span, b: Span | None = None) -> dict[str, np.ndarray]:
        """Reads the spans of rows `before A between B after`; returns the fields of the encoder.

        A row whose B is empty is `before A after`. Token types are 1 from B to the end, or all 0 if
        the tokenizer has one segment.

        Args:
          a, b: The spans; A is not empty. With the special tokens, they fit in a row.

        Returns:
          `ENCODER_FIELDS`, int32 [B, L].
        """
        tokenizer, width = self.tokenizer, self.spec.max_seq_length
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
        ids_BxL[is_text_BxL] = self.tokens_at((origin_BxL + column_L)[is_text_BxL])
        is_real_BxL = column_L < column_B[:, None]
        token_type_ids_BxL = np.zeros_like(ids_BxL)
        if b is not None and template.num_segments == 2:
            token_type_ids_BxL[:] = (column_L >= b_first_B[:, None]) & is_real_BxL
        return {
            "input_ids": ids_BxL,
            "token_type_ids": token_type_ids_BxL,
            "attention_mask": is_real_BxL.astype(np.int32),
        }

    def _target_lengths(self, block: Block, rng: np.random.Generator) -> np.ndarray:
        """Draws the target length of the rows of each document, int64 [D]."""
        coin_D, size_D = rng.random((2, block.num_documents))
        short_D = 2 + (size_D * (self._max_num_tokens - 1)).astype(np.int64)
        return np.where(coin_D < self.spec.short_seq_prob, short_D, self._max_num_tokens)

    def _generator(self, epoch: int, part: int, *tags: int) -> np.random.Generator:
        return keyed_generator(self.spec.seed, self.spec.stage, epoch, part, *tags)

    def _read(self, epoch: int, window: int) -> Iterator[tuple[Block, np.random.Generator]]:
        """Yields the blocks of a window, each with its random numbers."""
        windows, earlier = self._windows(epoch)
        number_N, source_N = windows[window], self._blocks.source_B[windows[window]]
        blocks = {}
        # A random document is of the same source.
        for source in np.unique(source_N).tolist():
            numbers = number_N[source_N == source].tolist()
            pool = set(numbers)
            if len(pool) == 1:
                # Another block of the source joins, so that the pool has two documents.
                following = np.concatenate([*windows[window + 1 :], *windows[: window + 1]])
                others = following[self._blocks.source_B[following] == source]
                pool |= set(others[others != numbers[0]][:1].tolist())
            blocks[source] = self._blocks.read(numbers, pool)
        for number, source, repeat in zip(
            *(values.tolist() for values in (number_N, source_N, earlier[window])), strict=True
        ):
            # The first reading of a block has the key that it has without repeats.
            key = (PLAN_TAG, repeat) if repeat else (PLAN_TAG,)
            yield next(blocks[source]), self._generator(epoch, number, *key)


def occurrences(number_N: np.ndarray) -> np.ndarray:
    """Returns how often each number occurs before its place, int64 [N]."""
    order = np.argsort(number_N, kind="stable")
    ordered_N = number_N[order]
    before_N = np.empty_like(number_N)
    before_N[order] = np.arange(len(number_N)) - np.searchsorted(ordered_N, ordered_N)
    return before_N


def select_rows(plan: Any, selection: Any) -> Any:
    """Returns the rows of a plan that `selection` (a slice or indices) selects."""
    return type(plan)(*(column[selection] for column in plan))


def concatenate_rows(plans: Sequence[Any]) -> Any:
    """Returns the rows of all plans as one plan."""
    return type(plans[0])(*map(np.concatenate, zip(*plans, strict=True)))


def gather_text(
    block: Block,
    target_D: np.ndarray,
    divide: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, tuple[np.ndarray, ...]]],
    most: int = 0,
) -> tuple[np.ndarray, ...]:
    """Cuts the documents of a block into chunks.

    Each iteration cuts one chunk from every document that has text left. The longest document
    therefore determines the number of iterations.

    Args:
      target_D: int64 [D], at least 1: a chunk ends at the first sentence boundary at or beyond
        this many tokens, or with its document.
      divide: Takes the first token of each chunk and the token after its last; returns where the
        document's next chunk begins, and further columns of the chunks.
      most: The largest number of tokens in a chunk, which then ends inside a sentence; 0 for no
        limit.

    Returns:
      int64 [N] each: the chunk's document, its first token, and the token after its last; then the
      columns of `divide`. The chunks of a document are in text order. Documents count within the
      block, tokens within the store.
    """
    document = np.arange(block.num_documents)
    bounds = block.sentence_starts[block.document_starts]
    first, stop, target = bounds[:-1], bounds[1:], target_D
    turns: list[tuple[np.ndarray, ...]] = []
    while document.size:
        end = np.searchsorted(block.sentence_starts, np.minimum(first + target, stop))
        end = block.sentence_starts[end]
        if most:
            end = np.minimum(end, first + most)
        following, columns = divide(first, end)
        turns.append((document, first, end, *columns))
        left = following < stop
        document, stop, target, first = document[left], stop[left], target[left], following[left]
    return tuple(map(np.concatenate, zip(*turns, strict=True)))
