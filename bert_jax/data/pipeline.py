"""The input pipeline: from the token store to batches, through tf.data.

Step n of a stage takes examples n * B to (n + 1) * B of the stage's stream (see
examples.py). A batch is a pure function of (spec, store, n): hosts, threads and
interruptions do not enter. To resume, only the window that a step falls in is
planned again.
"""

import atexit
import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.batch_shards import HostRows
from bert_jax.data.examples import Examples, PipelineSpec, Window, read_position
from bert_jax.data.lean_tensorflow import tf
from bert_jax.data.pairs import PairPlan
from bert_jax.errors import UserError

__all__ = ["PipelineSpec", "PretrainingStream", "evaluation_batches"]


class PretrainingStream:
    """A stage's batches, as one host sees them.

    Args:
      store: the token store of the training split: `num_documents`, `num_sentences`,
        `document_starts`, `sentence_starts`, `tokens_at(positions)`.
      tokenizer: has `vocab_size`, `pad_id`, `cls_id`, `sep_id`, `mask_id` and
        `is_word_start_V`, bool by id.
      spec: see PipelineSpec.
      shards, num_shards: each global batch is cut into `num_shards` equal parts, and
        this host has those with the numbers `shards`, ascending.

    Raises:
      UserError: the batch does not divide, the corpus has fewer than two documents, or
        a length is impossible.
    """

    def __init__(
        self,
        store,
        tokenizer,
        spec: PipelineSpec,
        *,
        shards: Sequence[int] = (0,),
        num_shards: int = 1,
    ):
        self._rows = HostRows(spec.batch_size, shards, num_shards)
        self.spec = spec
        self._examples = Examples(store, tokenizer, spec)

    def position(self, step: int) -> dict[str, int]:
        """Where the first example of `step` lies: `{"epoch", "window", "first_example"}`.

        JSON-able, the same whether or not the steps before it were ever iterated, and
        cheap if they were. With it, `batches` plans nothing that lies before.
        """
        return dataclasses.asdict(self._examples.find(step * self.spec.batch_size))

    def batches(
        self, first_step: int, num_steps: int, position: dict | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """This host's rows of steps `first_step` to `first_step + num_steps`.

        Args:
          first_step: a step of this stage, from 0.
          num_steps: how many.
          position: what `position(first_step)`, or of an earlier step, gave; without
            it, all windows before are counted once more.

        Yields:
          `input_ids`, `token_type_ids`, `attention_mask` int32 [b, L];
          `masked_lm_positions`, `masked_lm_ids` int32 [b, M], `masked_lm_weights`
          float32 [b, M]; `next_sentence_labels` int32 [b].

        Raises:
          UserError: `position` is none of this stream's. Errors in reading the store
          come as they are.
        """
        raised: list[Exception] = []
        dataset = self._dataset(first_step, num_steps, position, raised)
        batches = _iterate(dataset, raised)
        _open_batches.add(batches)
        return batches

    def dataset(
        self, first_step: int, num_steps: int, position: dict | None = None
    ) -> tf.data.Dataset:
        """What `batches` iterates: elements are its dicts, shapes static."""
        return self._dataset(first_step, num_steps, position, [])

    def describe_batch(self, step: int) -> dict[str, Any]:
        """The identity of a global batch, JSON-able; plans the batch anew.

        `rows` holds, for each row, [document of A, sentence in it, document of B,
        sentence in it], of the first token of either.
        """
        size = self.spec.batch_size
        first = step * size
        start = self._examples.find(first)
        _, plan = next(self._examples.spans(start, first, size, size, 1))
        places = [self._examples.planner.locate(s) for s in (plan.a_start_N, plan.b_start_N)]
        windows, at = [], first
        while at < first + size:
            window = self._examples.find(at)
            windows.append([window.epoch, window.window])
            at = self._examples.after(window).first_example
        return {
            "stage": self.spec.stage,
            "step": step,
            "first_example": first,
            "last_example": first + size - 1,
            "epoch": start.epoch,
            "windows": windows,  # [epoch, window]
            "rows": np.stack([p for place in places for p in place], axis=1).tolist(),
        }

    def _dataset(
        self, first_step: int, num_steps: int, position: dict | None, raised: list[Exception]
    ) -> tf.data.Dataset:
        spec, rows = self.spec, self._rows
        first = first_step * spec.batch_size
        if position is not None:
            window = read_position(position)
            if window.first_example > first:
                raise UserError(
                    f"the input position {position} lies after step {first_step}, whose first "
                    f"example is {first}: the checkpoint belongs to another batch size or stage"
                )
            if window.window >= len(self._examples.planner.windows(window.epoch)):
                raise UserError(
                    f"the input position {position} does not exist in this corpus: the data or "
                    "data.shuffle_sentences changed since the checkpoint was written"
                )
            self._examples.add_known(window)

        def elements():
            if num_steps < 1:
                return
            with _recording(raised):
                start = self._examples.find(first)
                for number, plan in _spans(self._examples, rows, start, first, num_steps):
                    yield number, *plan

        names = _batch_signature(len(rows.row_R), spec)

        def build(number, *plan):
            with _recording(raised):
                batch = _build(self._examples, rows, PairPlan(*plan), int(number))
            return [batch[name] for name in names]

        def to_batch(*element):
            columns = tf.numpy_function(build, element, [s.dtype for s in names.values()])
            for column, signature in zip(columns, names.values(), strict=True):
                column.set_shape(signature.shape)
            return dict(zip(names, columns, strict=True))

        _hide_accelerators()
        plan_types = (tf.int64, tf.int32, tf.int64, tf.int32, tf.bool)
        dataset = tf.data.Dataset.from_generator(
            elements,
            output_signature=(
                tf.TensorSpec((), tf.int64),
                *(tf.TensorSpec((len(rows.row_R),), dtype) for dtype in plan_types),
            ),
        )
        threads = max(1, spec.num_threads)
        dataset = dataset.map(to_batch, num_parallel_calls=threads, deterministic=True)
        options = tf.data.Options()
        options.autotune.enabled = False  # threads and buffers are the spec's
        return dataset.prefetch(max(1, spec.prefetch_batches)).with_options(options)


def evaluation_batches(
    store,
    tokenizer,
    spec: PipelineSpec,
    max_sequences: int = 0,
    *,
    shards: Sequence[int] = (0,),
    num_shards: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
    """One epoch with fixed pairs and masks, the same at every call.

    Args:
      store, tokenizer, shards, num_shards: as for PretrainingStream.
      spec: `seed` and `stage` determine pairs and masks.
      max_sequences: at most so many, the first of the shuffled epoch; 0: all.

    Yields:
      Batches as PretrainingStream's, this host's rows, with `example_weights` float32
      [b]: 1, or 0 for the rows that only fill up the last batch (whose
      `masked_lm_weights` are 0 as well).

    Raises:
      UserError: as PretrainingStream.
    """
    rows = HostRows(spec.batch_size, shards, num_shards)
    examples = Examples(store, tokenizer, spec)
    total = 0
    for window in range(len(examples.planner.windows(0))):
        total += examples.planner.count(0, window)
        if 0 < max_sequences <= total:
            total = max_sequences
            break
    # The rows beyond the total are simply the stream's next ones: real text, so
    # that no model meets a row of padding alone, but of no weight.
    num_batches = -(-total // spec.batch_size)
    for first, plan in _spans(examples, rows, Window(0, 0, 0), 0, num_batches):
        batch = _build(examples, rows, plan, first)
        weights = (first + rows.row_R < total).astype(np.float32)
        batch["masked_lm_weights"] *= weights[:, None]
        yield batch | {"example_weights": weights}


# Iterators handed out and not yet exhausted.
_open_batches: weakref.WeakSet[Iterator] = weakref.WeakSet()


@atexit.register
def _close_open_batches() -> None:
    """Ends tf.data's threads while they can still take Python's lock.

    Left to the interpreter's own end, an open iterator waits for threads that wait
    for a lock nobody will ever release.
    """
    for batches in list(_open_batches):
        with contextlib.suppress(ValueError):  # some thread is inside it just now
            batches.close()


def _iterate(dataset: tf.data.Dataset, raised: list[Exception]) -> Iterator[dict]:
    """The dataset's elements; the first of `raised` where tf.data tells of an error."""
    try:
        yield from dataset.as_numpy_iterator()
    except tf.errors.OpError:
        # tf.data speaks in its own words; the reader wants the first cause.
        if raised:
            raise raised[0] from None
        raise


@contextlib.contextmanager
def _recording(raised: list[Exception]) -> Iterator[None]:
    """Keeps what is raised inside, which tf.data would turn into an error of its own."""
    try:
        yield
    except Exception as error:
        raised.append(error)
        raise


def _hide_accelerators() -> None:
    """Keeps TensorFlow, which only feeds, from taking the memory JAX needs."""
    for kind in ("GPU", "TPU"):
        if tf.config.list_physical_devices(kind):
            try:
                tf.config.set_visible_devices([], kind)
            except RuntimeError:
                pass  # TensorFlow is already running: whoever started it has decided


def _spans(
    examples: Examples, rows: HostRows, start: Window, first: int, num_batches: int
) -> Iterator[tuple[int, PairPlan]]:
    """The host's rows of each batch: the number of the batch's first example, and their plan."""
    size = examples.spec.batch_size
    low, high = int(rows.row_R[0]), int(rows.row_R[-1]) + 1
    for number, plan in examples.spans(start, first + low, high - low, size, num_batches):
        if high - low > len(rows.row_R):
            plan = plan.rows(rows.row_R - low)
        yield number - low, plan


def _build(
    examples: Examples, rows: HostRows, plan: PairPlan, first_example: int
) -> dict[str, np.ndarray]:
    """The host's rows of a batch, which begins with `first_example`; each run by itself."""
    parts, at = [], 0
    for first, stop in rows.runs:
        until = at + stop - first
        parts.append(examples.build(plan.rows(slice(at, until)), first_example + first))
        at = until
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _batch_signature(rows: int, spec: PipelineSpec) -> dict[str, tf.TensorSpec]:
    by_token = tf.TensorSpec((rows, spec.max_seq_length), tf.int32)
    by_slot = tf.TensorSpec((rows, spec.max_predictions_per_seq), tf.int32)
    return {
        "input_ids": by_token,
        "token_type_ids": by_token,
        "attention_mask": by_token,
        "masked_lm_positions": by_slot,
        "masked_lm_ids": by_slot,
        "masked_lm_weights": tf.TensorSpec(by_slot.shape, tf.float32),
        "next_sentence_labels": tf.TensorSpec((rows,), tf.int32),
    }
