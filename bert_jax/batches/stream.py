"""The batches of a training stage.

Step n of a stage takes examples n * B to (n + 1) * B of the stage's stream. A batch is a pure
function of (spec, data, n). It does not depend on hosts, threads or interruptions.
"""

import dataclasses
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from bert_jax.base.batch import BatchFields, HostBatch, host_rows, shared_row_fields
from bert_jax.base.parts import load_part
from bert_jax.batches.corruption import CORRUPTIONS
from bert_jax.batches.examples import Examples, Window
from bert_jax.batches.packing import SharedRows
from bert_jax.batches.random_keys import CORRUPTION_TAG, random_key
from bert_jax.batches.rows import PAIRS, ROWS
from bert_jax.batches.rows.windows import select_rows

# The shape and the dtype of each array.
Signature = Mapping[str, tuple[tuple[int, ...], str]]
# The number of batches that are kept ready in host memory.
PREFETCH_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class StreamSpec:
    """The options of a stage's stream. `num_threads` affects only its speed.

    A key of `config.data` that a row builder or a corruption reads has a field of its name here.

    Attributes:
      max_seq_length: Tokens of a row, with special tokens and padding.
      max_predictions_per_seq: The most tokens of a row that are predicted.
      batch_size: The rows of a global batch.
      stage: The index of the stage, which gives its order of the text with the seed.
      corruption: A name of `config.data.corruption`, or the corruption itself.
      masked_lm_prob: The fraction of the tokens that are chosen, from 0 to 1.
      mask_fractions: The fractions of chosen tokens that become [MASK], are kept, and become
        random.
      max_pairs_per_row: The largest number of pairs that share a row; 1 for rows of one pair.
      max_sentence_tokens: Longer sentences are divided; 0 divides none.
      shuffle_sentences: Sentences of a window in which rows are shuffled.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    batch_size: int
    seed: int
    stage: int
    rows: str
    pair_labels: str
    corruption: Any
    masked_lm_prob: float
    mask_fractions: tuple[float, float, float]
    poisson_lambda: float
    permute_sentence_ratio: float
    whole_word_masking: bool
    max_sentence_tokens: int
    short_seq_prob: float
    max_pairs_per_row: int
    sampling_exponent: float
    source_weights: tuple[str, ...]
    shuffle_sentences: int
    num_threads: int

    @classmethod
    def of(cls, data: Mapping[str, Any], **own: Any) -> Self:
        """Makes the options from `own` values; the other fields have those of `config.data`."""
        names = {field.name for field in dataclasses.fields(cls)} - own.keys()
        return cls(**own, **{name: data[name] for name in names})


def batch_fields(
    rows: str, corruption: Any, pair_labels: str = "next", max_pairs_per_row: int = 1
) -> BatchFields:
    """Returns the fields of a batch: those of the row builder, then those of the corruption.

    If several pairs may share a row, see `shared_row_fields`.
    """
    builder = _row_builder(rows, pair_labels)
    fields = {**builder.fields, **corruption_of(corruption).fields}
    return fields if max_pairs_per_row == 1 else shared_row_fields(fields)


class Stream:
    """The batches of one stage on one host, made on demand.

    Args:
      shards, num_shards: Each global batch is cut into `num_shards` equal parts. This host has
        the parts `shards`, in ascending order.

    Attributes:
      examples: The numbered rows; each has several rows of the builder if pairs share rows.
    """

    def __init__(
        self,
        store,
        tokenizer,
        spec: StreamSpec,
        *,
        shards: Sequence[int] = (0,),
        num_shards: int = 1,
    ):
        self.spec = spec
        self.fields = batch_fields(
            spec.rows, spec.corruption, spec.pair_labels, spec.max_pairs_per_row
        )
        self._row_R = host_rows(spec.batch_size, shards, num_shards)
        self.rows = _row_builder(spec.rows, spec.pair_labels)(store, tokenizer, spec)
        self._corruption = corruption_of(spec.corruption)(tokenizer, spec, store)
        # The copies of each row; only held-out rows may have more than one.
        self._repeats = getattr(self._corruption, "repeats", 1)
        # The same rows, assembled from marks of the tokens instead of the ids.
        self._marked_rows = {}
        if store.has_words:
            self._marked_rows["begins_word"] = self.rows.reading(store.word_starts_at)
        if getattr(self._corruption, "needs_sentences", False):
            self._marked_rows["begins_sentence"] = self.rows.reading(store.sentence_starts_at)
        self._key = random_key(spec.seed, spec.stage, 0, 0, CORRUPTION_TAG)
        self._shared_rows = None
        if spec.max_pairs_per_row > 1:
            self._shared_rows = SharedRows(self.rows, self._corruption.fields)
        self.examples = Examples(self._shared_rows or self.rows)

    def position(self, step: int) -> dict[str, int]:
        """Returns `{"first_example", "epoch", "window"}` of the window of a step's first example.

        The result does not depend on whether earlier steps were iterated. Given this position,
        `batches` does not plan earlier windows.
        """
        return dataclasses.asdict(self.examples.find(step * self.spec.batch_size))

    def batches(
        self, first_step: int, num_steps: int, position: dict[str, int] | None = None
    ) -> Iterator[HostBatch]:
        """Returns this host's rows of `num_steps` batches.

        Args:
          first_step: A step of this stage, from 0.
          position: The result of `position` for `first_step` or an earlier step.

        Returns:
          An iterator with a method `close`. Errors in reading the data are raised unchanged.
        """
        if position is not None:
            self.examples.add_known(Window(**position))
        spec = self.spec
        sizes = len(self._row_R), spec.max_seq_length, spec.max_predictions_per_seq
        sizes = *sizes, spec.max_pairs_per_row
        signature = {
            name: (field.shape(*sizes), field.dtype) for name, field in self.fields.items()
        }
        return BatchIterator(functools.partial(self.make_batches, first_step, num_steps), signature)

    def build(self, plan: Any, first_example: int) -> HostBatch:
        """Makes consecutive rows, the first numbered `first_example`."""
        if self._shared_rows:
            return self._shared_rows.build(plan, self._sequences)
        return self._sequences(plan, self._key, first_example)

    def _sequences(self, plan: Any, key: np.ndarray, first_example: int) -> HostBatch:
        """Assembles and corrupts consecutive examples, the first numbered `first_example`."""
        if self._repeats > 1:
            first_example *= self._repeats
            plan = select_rows(plan, np.repeat(np.arange(len(plan[0])), self._repeats))
        batch = self.rows.assemble(plan)
        marks = {
            name: rows.assemble(plan)["input_ids"] == 1 for name, rows in self._marked_rows.items()
        }
        return batch | self._corruption.corrupt(batch | marks, key, first_example)

    def make_batches(self, first_step: int, num_steps: int) -> Iterator[HostBatch]:
        """Yields the arrays of `batches` without tf.data."""
        return prefetch(self._makers(first_step * self.spec.batch_size, num_steps), self.spec)

    def _makers(self, first: int, num_batches: int) -> Iterator[Callable[[], HostBatch]]:
        """Yields functions that each make a batch; they may run concurrently, in any order."""
        if num_batches < 1:
            return
        row_R, size = self._row_R, self.spec.batch_size
        low, high = int(row_R[0]), int(row_R[-1]) + 1
        start = self.examples.find(first)
        spans = self.examples.spans(start, first + low, high - low, size, num_batches)
        for number, plan in spans:
            yield functools.partial(self._host_rows, plan, number)

    def _host_rows(self, plan: Any, first_example: int) -> HostBatch:
        """Builds the host's rows; `plan` covers all rows from its first to its last."""
        offset_R = self._row_R - self._row_R[0]
        runs = np.split(offset_R, np.flatnonzero(np.diff(offset_R) > 1) + 1)
        parts = [
            self.build(select_rows(plan, slice(run[0], run[-1] + 1)), first_example + int(run[0]))
            for run in runs
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def prefetch(makers: Iterable[Callable[[], HostBatch]], spec: StreamSpec) -> Iterator[HostBatch]:
    """Calls functions ahead of time, in a few threads, and yields their results in order."""
    waiting: deque = deque()
    pool = ThreadPoolExecutor(max(1, spec.num_threads), thread_name_prefix="batches")
    try:
        for maker in makers:
            waiting.append(pool.submit(maker))
            if len(waiting) > PREFETCH_BATCHES:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _row_builder(name: str, pair_labels: str) -> Any:
    builders = {**ROWS, "pairs": PAIRS[pair_labels]}
    return load_part(name, builders, "config.data.rows")


def corruption_of(name: Any) -> Any:
    """Returns the corruption of a name; a corruption itself is returned unchanged."""
    if not isinstance(name, str):
        return name
    return load_part(name, CORRUPTIONS, "config.data.corruption")


class BatchIterator(Iterator[HostBatch]):
    """Iterates over batches through tf.data, and raises errors of `make_batches` unchanged.

    If TensorFlow cannot be imported, the batches come from `make_batches` without it.

    The generator does all the work, including prefetching, because threads of tf.data could call
    Python while the interpreter exits.

    Attributes:
      close: Ends the iteration and releases its threads. It also runs when the iterator is no
        longer used, and before the interpreter exits: tf.data calls Python to end a generator,
        and after the exit that call would never return.
    """

    def __init__(self, make_batches: Callable[[], Iterator[HostBatch]], signature: Signature):
        self._elements = _elements(make_batches, signature)
        self.close = weakref.finalize(self, self._elements.close)

    def __next__(self) -> HostBatch:
        return next(self._elements)


def _elements(
    make_batches: Callable[[], Iterator[HostBatch]], signature: Signature
) -> Iterator[HostBatch]:
    try:
        # Importing TensorFlow takes seconds.
        from bert_jax.base.lean_tensorflow import hide_accelerators, tf
    except ImportError:
        yield from make_batches()
        return

    hide_accelerators()
    specs = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in signature.items()}
    errors: list[Exception] = []

    def until_error() -> Iterator[HostBatch]:
        # tf.data would replace an error with its own. Instead, the data ends, and the error is
        # raised below.
        try:
            yield from make_batches()
        except Exception as error:
            errors.append(error)

    # There is nothing to tune, and the end of the iterator would wait for the thread that tunes: it
    # may sleep for a minute.
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(until_error, output_signature=specs)
    yield from dataset.with_options(options).as_numpy_iterator()
    if errors:
        raise errors[0]
