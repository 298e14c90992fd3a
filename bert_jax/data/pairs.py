"""Sentence pairs for next-sentence prediction: which spans of the token store meet.

The rules are those of `create_instances_from_document` and `truncate_seq_pair` in
google-research/bert's create_pretraining_data.py, with one difference: a random B
always comes from another document (the original tries ten times, then takes its
own). Nothing here reads a token: a plan names spans of the store, and
`assemble_rows` reads the tokens of those rows a host is asked for.

An epoch is planned in *blocks*, runs of consecutive documents. Blocks come in an
order of their own each epoch and are gathered into *windows* of about
`shuffle_sentences` sentences, whose examples are shuffled together. Everything
random is keyed by (seed, stage, epoch, block or window), so that any window can be
planned alone, on any host, in any order.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError

# [CLS] A [SEP] B [SEP]
NUM_SPECIALS = 3
BLOCKS_PER_WINDOW = 16

# What a random stream is for; part of its key.
_TAG_PAIRS, _TAG_BLOCK_ORDER, _TAG_SHUFFLE, TAG_MASKS, TAG_ROWS = range(5)


class PairPlan(NamedTuple):
    """N examples, each two spans of the token store, already truncated."""

    a_start_N: np.ndarray  # int64, token position of A's first token
    a_length_N: np.ndarray  # int32, at least 1
    b_start_N: np.ndarray  # int64
    b_length_N: np.ndarray  # int32, at least 1
    is_random_N: np.ndarray  # bool, B does not follow A

    def rows(self, selection) -> "PairPlan":
        """The examples that `selection` (a slice or indices) names."""
        return PairPlan(*(column[selection] for column in self))


class Chunks(NamedTuple):
    """N pairs before B is drawn and before truncation, in sentence indices."""

    document_N: np.ndarray  # which of the documents given
    a_first_N: np.ndarray  # first sentence of A
    a_end_N: np.ndarray  # one past the last sentence of A
    end_N: np.ndarray  # one past the chunk's last sentence, where a true B ends
    is_random_N: np.ndarray  # bool; if so, a_end..end goes back to the document


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """What, with the store, determines every pair of every epoch."""

    max_seq_length: int
    short_seq_prob: float
    shuffle_sentences: int
    seed: int
    stage: int


def random_key(*parts: int) -> np.ndarray:
    """A Philox key, uint64 [2], that mixes whole numbers of up to 64 bits each."""
    # Two fixed words a part: SeedSequence's own splitting would let the key
    # (2**32, ...) fall together with (0, 1, ...).
    words = [word for part in parts for word in (part & 0xFFFFFFFF, part >> 32 & 0xFFFFFFFF)]
    return np.random.SeedSequence(words).generate_state(2, np.uint64)


def keyed_generator(*parts: int) -> np.random.Generator:
    """The random stream that belongs to `parts`; equal parts, equal stream."""
    return np.random.Generator(np.random.Philox(key=random_key(*parts)))


def target_lengths(
    rng: np.random.Generator, num_documents: int, max_num_tokens: int, short_seq_prob: float
) -> np.ndarray:
    """The length, int64 [D], that a document's pairs aim at: drawn once a document."""
    coin_D, size_D = rng.random((2, num_documents))
    short_D = 2 + (size_D * (max_num_tokens - 1)).astype(np.int64)
    return np.where(coin_D < short_seq_prob, short_D, max_num_tokens)


def chunk_documents(
    rng: np.random.Generator,
    document_starts: np.ndarray,
    sentence_starts: np.ndarray,
    target_D: np.ndarray,
) -> Chunks:
    """Cuts D documents into pairs: where each A starts and ends, and what follows it.

    Each turn of the loop makes one pair of every document that has sentences left,
    so the number of turns is that of the longest document's pairs.

    Args:
      rng: the randomness of these documents.
      document_starts: int64 [D + 1], first sentence of each document.
      sentence_starts: int64 [S + 1], first token of each sentence.
      target_D: int64 [D], at least 1: the tokens at which a chunk is long enough.

    Returns:
      The chunks of all documents, a document's own in text order; sentence indices
      count as in `document_starts`.
    """
    document = np.arange(len(document_starts) - 1)
    first, stop, target = document_starts[:-1], document_starts[1:], target_D
    turns: list[tuple[np.ndarray, ...]] = []
    finished: list[tuple[np.ndarray, ...]] = []
    while document.size:
        # The first sentence boundary at or beyond the target, or the document's end.
        end = np.searchsorted(sentence_starts, sentence_starts[first] + target)
        end = np.minimum(end, stop)
        split, coin = rng.random((2, document.size))
        count = end - first
        # One sentence: A is all of it. More: A takes 1 to count - 1 of them.
        a_end = first + 1 + (split * (count - 1)).astype(np.int64)
        is_random = (count == 1) | (coin < 0.5)
        turns.append((document, first, a_end, end, is_random))
        # One long document makes turns of one pair each: thousands of tiny arrays
        # would take more memory than what they hold.
        if len(turns) == 1024:
            finished.append(_join(turns))
            turns = []
        # What a random B displaced is where the next chunk begins.
        first = np.where(is_random, a_end, end)
        left = first < stop
        if not left.all():
            document, first, stop, target = document[left], first[left], stop[left], target[left]
    return Chunks(*_join(finished + turns))


def _join(parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def truncated_lengths(
    a_length: np.ndarray, b_length: np.ndarray, max_num_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Lengths after tokens are taken, one by one, from the longer side (B if equal).

    Args:
      a_length: int [N], at least 1; b_length the same.
      max_num_tokens: what both together may have, at least 2.

    Returns:
      Both lengths, in closed form: the longer comes down to the shorter first, then
      they take turns, B first.
    """
    excess = np.maximum(a_length + b_length - max_num_tokens, 0)
    a_over = np.minimum(np.maximum(a_length - b_length, 0), excess)
    b_over = np.minimum(np.maximum(b_length - a_length, 0), excess)
    rest = excess - a_over - b_over
    return a_length - a_over - rest // 2, b_length - b_over - (rest + 1) // 2


class PairPlanner:
    """Plans the examples of any window of any epoch.

    Args:
      store: has `num_documents`, `num_sentences`, `document_starts` (int64 [D + 1])
        and `sentence_starts` (int64 [S + 1]); no sentence and no document is empty.
      settings: see PairSettings.

    Raises:
      UserError: there is no other document to draw from, or sequences too short to
        hold two tokens.
    """

    def __init__(self, store, settings: PairSettings):
        if store.num_documents < 2:
            raise UserError(
                "next sentence prediction needs at least 2 documents, and the corpus has "
                f"{store.num_documents}: split the text in more documents"
            )
        if settings.max_seq_length < NUM_SPECIALS + 2:
            raise UserError(
                f"max_seq_length is {settings.max_seq_length}; it must be at least "
                f"{NUM_SPECIALS + 2}: [CLS], two [SEP] and a token on either side"
            )
        if settings.shuffle_sentences < 1:
            raise UserError(
                f"data.shuffle_sentences is {settings.shuffle_sentences}; it must be at least 1"
            )
        self.settings = settings
        # Plain views of the memory maps: int64 already, or searchsorted would copy
        # the whole index at every call.
        self._document_starts = np.asarray(store.document_starts, dtype=np.int64)
        self._sentence_starts = np.asarray(store.sentence_starts, dtype=np.int64)
        self._num_documents = int(store.num_documents)
        block_sentences = max(1, settings.shuffle_sentences // BLOCKS_PER_WINDOW)
        # A block begins with the first document at or after each multiple of its
        # size; a document longer than that closes its block.
        grid = np.arange(0, self._document_starts[-1], block_sentences)
        firsts = np.searchsorted(self._document_starts[:-1], grid)
        firsts = np.unique(firsts[firsts < self._num_documents])
        self._block_starts = np.append(firsts, self._num_documents)
        self._epoch_windows: tuple[int, list[np.ndarray]] = (-1, [])

    def windows(self, epoch: int) -> list[np.ndarray]:
        """The blocks of each window of the epoch, in the order of the stream."""
        cached_epoch, windows = self._epoch_windows
        if cached_epoch != epoch:
            rng = self._generator(epoch, 0, _TAG_BLOCK_ORDER)
            order = rng.permutation(len(self._block_starts) - 1)
            block_sentences = np.diff(self._document_starts[self._block_starts])[order]
            before = np.cumsum(block_sentences) - block_sentences
            # A window closes at the first block that begins beyond its share.
            closes = np.flatnonzero(np.diff(before // self.settings.shuffle_sentences)) + 1
            windows = np.split(order, closes)
            self._epoch_windows = (epoch, windows)
        return windows

    def count(self, epoch: int, window: int) -> int:
        """How many examples the window has; cheaper than planning it."""
        blocks = self.windows(epoch)[window]
        return sum(self._chunks(epoch, int(block))[0].document_N.size for block in blocks)

    def plan(self, epoch: int, window: int) -> PairPlan:
        """The window's examples, shuffled."""
        blocks = self.windows(epoch)[window]
        parts = [self._plan_block(epoch, int(block)) for block in blocks]
        columns = [list(column) for column in zip(*parts, strict=True)]
        del parts
        num_examples = sum(column.size for column in columns[0])
        order = self._generator(epoch, window, _TAG_SHUFFLE).permutation(num_examples)
        shuffled = []
        for column in columns:  # column by column: the least memory
            joined = np.concatenate(column)
            column.clear()
            shuffled.append(joined[order])
        return PairPlan(*shuffled)

    def locate(self, positions_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Document, and sentence in it, of token positions; both int64 [N]."""
        sentence_N = np.searchsorted(self._sentence_starts, positions_N, side="right") - 1
        document_N = np.searchsorted(self._document_starts, sentence_N, side="right") - 1
        return document_N, sentence_N - self._document_starts[document_N]

    def _generator(self, epoch: int, part: int, tag: int) -> np.random.Generator:
        return keyed_generator(self.settings.seed, self.settings.stage, epoch, part, tag)

    def _chunks(self, epoch: int, block: int):
        """The block's chunks, the target of each, and the generator to go on with."""
        rng = self._generator(epoch, block, _TAG_PAIRS)
        document_starts = self._document_starts[
            self._block_starts[block] : self._block_starts[block + 1] + 1
        ]
        first = document_starts[0]
        # The block's own piece of the index, in memory and small enough for caches.
        sentence_starts = np.array(self._sentence_starts[first : document_starts[-1] + 1])
        target_D = target_lengths(
            rng,
            len(document_starts) - 1,
            self.settings.max_seq_length - NUM_SPECIALS,
            self.settings.short_seq_prob,
        )
        chunks = chunk_documents(rng, document_starts - first, sentence_starts, target_D)
        return chunks, target_D[chunks.document_N], sentence_starts, rng

    def _plan_block(self, epoch: int, block: int) -> PairPlan:
        chunks, target_N, sentence_starts, rng = self._chunks(epoch, block)
        a_start_N = sentence_starts[chunks.a_first_N]
        b_start_N = sentence_starts[chunks.a_end_N]
        a_length_N = b_start_N - a_start_N
        b_length_N = sentence_starts[chunks.end_N] - b_start_N

        is_random = chunks.is_random_N
        own_R = chunks.document_N[is_random] + self._block_starts[block]
        b_start_N[is_random], b_length_N[is_random] = self._random_spans(
            rng, own_R, (target_N - a_length_N)[is_random]
        )

        a_kept_N, b_kept_N = truncated_lengths(
            a_length_N, b_length_N, self.settings.max_seq_length - NUM_SPECIALS
        )
        # A fair coin for every token taken: front or back.
        a_start_N += rng.binomial(a_length_N - a_kept_N, 0.5)
        b_start_N += rng.binomial(b_length_N - b_kept_N, 0.5)
        return PairPlan(
            a_start_N,
            a_kept_N.astype(np.int32),
            b_start_N,
            b_kept_N.astype(np.int32),
            is_random,
        )

    def _random_spans(
        self, rng: np.random.Generator, own_R: np.ndarray, target_R: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of spans that begin at a random sentence of another document.

        `target_R` is the tokens wanted; even if that is none, a sentence is taken.
        """
        which_R, where_R = rng.random((2, own_R.size))
        document_R = (which_R * (self._num_documents - 1)).astype(np.int64)
        document_R += document_R >= own_R  # skip the own document: uniform over the others
        first_R = self._document_starts[document_R]
        stop_R = self._document_starts[document_R + 1]
        first_R = first_R + (where_R * (stop_R - first_R)).astype(np.int64)
        start_R = self._sentence_starts[first_R]
        end_R = np.searchsorted(self._sentence_starts, start_R + target_R)
        end_R = np.minimum(np.maximum(end_R, first_R + 1), stop_R)
        return start_R, self._sentence_starts[end_R] - start_R


def assemble_rows(
    store, plan: PairPlan, max_seq_length: int, *, pad_id: int, cls_id: int, sep_id: int
) -> dict[str, np.ndarray]:
    """Reads the planned spans: `[CLS] A [SEP] B [SEP]` and padding.

    Args:
      store: has `tokens_at(positions)`, int64 of any shape to int32 of the same.
      plan: B examples of at most L - 3 tokens each.
      max_seq_length: L.

    Returns:
      `input_ids`, `token_type_ids` (0 up to the first [SEP], 1 up to the second, 0 on
      padding), `attention_mask` (1 but on padding), all int32 [B, L], and
      `next_sentence_labels` int32 [B] (0: B follows A, 1: B is random).
    """
    column_L = np.arange(max_seq_length, dtype=np.int64)
    a_length_Bx1 = plan.a_length_N[:, None].astype(np.int64)
    first_sep_Bx1 = a_length_Bx1 + 1
    last_sep_Bx1 = first_sep_Bx1 + plan.b_length_N[:, None] + 1
    is_second_BxL = column_L > first_sep_Bx1
    is_text_BxL = column_L < last_sep_Bx1
    # Column 1 is A's first token; column first_sep + 1 is B's.
    origin_BxL = np.where(
        is_second_BxL, plan.b_start_N[:, None] - first_sep_Bx1 - 1, plan.a_start_N[:, None] - 1
    )
    is_text_BxL[:, 0] = False
    np.put_along_axis(is_text_BxL, first_sep_Bx1, False, axis=1)

    input_ids_BxL = np.full(is_text_BxL.shape, pad_id, dtype=np.int32)
    input_ids_BxL[is_text_BxL] = store.tokens_at((origin_BxL + column_L)[is_text_BxL])
    input_ids_BxL[:, 0] = cls_id
    np.put_along_axis(input_ids_BxL, first_sep_Bx1, sep_id, axis=1)
    np.put_along_axis(input_ids_BxL, last_sep_Bx1, sep_id, axis=1)
    is_real_BxL = column_L <= last_sep_Bx1
    return {
        "input_ids": input_ids_BxL,
        "token_type_ids": (is_second_BxL & is_real_BxL).astype(np.int32),
        "attention_mask": is_real_BxL.astype(np.int32),
        "next_sentence_labels": plan.is_random_N.astype(np.int32),
    }
