"""The stream of examples of a training stage: planned, read and masked on demand.

The examples of a stage form one endless stream: window after window, epoch after
epoch (see pairs.py). Examples are numbered through; number i is a pure function of
(spec, store, i), and so is any run of them. Nothing here knows of TensorFlow.
"""

import bisect
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bert_jax.data.masking import make_rules, mask_rows
from bert_jax.data.pairs import (
    TAG_MASKS,
    PairPlan,
    PairPlanner,
    PairSettings,
    assemble_rows,
    random_key,
)
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class PipelineSpec:
    """What determines a stage's stream, and (the last two) how fast it comes."""

    max_seq_length: int
    max_predictions_per_seq: int
    batch_size: int  # global
    seed: int
    stage: int
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    whole_word_masking: bool = False
    shuffle_sentences: int = 2**20
    num_threads: int = 2
    prefetch_batches: int = 4


@dataclasses.dataclass(frozen=True, order=True)
class Window:
    """A window, and where in the stream it begins."""

    first_example: int
    epoch: int
    window: int


class Examples:
    """The stream of examples of one stage: planned, read and masked on demand."""

    def __init__(self, store, tokenizer, spec: PipelineSpec):
        if not 1 <= spec.max_predictions_per_seq <= spec.max_seq_length:
            raise UserError(
                f"max_predictions_per_seq is {spec.max_predictions_per_seq}; it must be between "
                f"1 and max_seq_length, {spec.max_seq_length}"
            )
        if spec.batch_size < 1:
            raise UserError(f"batch_size is {spec.batch_size}; it must be at least 1")
        self.spec = spec
        self.planner = PairPlanner(
            store,
            PairSettings(
                max_seq_length=spec.max_seq_length,
                short_seq_prob=spec.short_seq_prob,
                shuffle_sentences=spec.shuffle_sentences,
                seed=spec.seed,
                stage=spec.stage,
            ),
        )
        self._store = store
        self._ids = {name: int(getattr(tokenizer, name)) for name in ("pad_id", "cls_id", "sep_id")}
        self._rules = make_rules(
            tokenizer,
            max_predictions=spec.max_predictions_per_seq,
            masked_lm_prob=spec.masked_lm_prob,
            whole_word_masking=spec.whole_word_masking,
        )
        self._mask_key = random_key(spec.seed, spec.stage, 0, 0, TAG_MASKS)
        # Windows whose size is known, by their first example, and the lock that
        # keeps the list and the sizes in step.
        self._lock = threading.Lock()
        self._known: list[Window] = [Window(0, 0, 0)]
        self._sizes: dict[Window, int] = {}

    def build(self, plan: PairPlan, first_example: int) -> dict[str, np.ndarray]:
        """The batch of consecutive examples, `first_example` the stream's number of the first."""
        batch = assemble_rows(self._store, plan, self.spec.max_seq_length, **self._ids)
        masked = mask_rows(
            batch["input_ids"], batch["attention_mask"], self._rules, self._mask_key, first_example
        )
        return batch | masked

    def add_known(self, window: Window) -> None:
        """Notes where a window begins: later searches may start from it."""
        with self._lock:
            at = bisect.bisect_left(self._known, window)
            if at == len(self._known) or self._known[at] != window:
                self._known.insert(at, window)

    def plan(self, window: Window) -> tuple[PairPlan, Window]:
        """The window's examples, and the window after it."""
        plan = self.planner.plan(window.epoch, window.window)
        return plan, self._remember(window, plan.a_start_N.size)

    def after(self, window: Window) -> Window:
        """The window after this one: from memory, else by counting this one's examples."""
        with self._lock:
            size = self._sizes.get(window)
        if size is None:
            size = self.planner.count(window.epoch, window.window)
        return self._remember(window, size)

    def find(self, example: int) -> Window:
        """The window that holds the example: from memory, else by counting forward."""
        with self._lock:
            at = bisect.bisect_right(self._known, example, key=lambda w: w.first_example)
            window = self._known[at - 1]
        while (after := self.after(window)).first_example <= example:
            window = after
        return window

    def spans(
        self, start: Window, first_row: int, num_rows: int, stride: int, num_batches: int
    ) -> Iterator[tuple[int, PairPlan]]:
        """Runs of rows: `num_rows` from example `first_row`, then `stride` further on, ...

        Yields (number of the first example, plan of the rows), `num_batches` times.
        The next window is planned while the current one is consumed.
        """
        stop = first_row + (num_batches - 1) * stride + num_rows
        with ThreadPoolExecutor(1, thread_name_prefix="plan") as ahead:
            pending = ahead.submit(self.plan, start)
            upcoming, end = start, start.first_example
            for batch in range(num_batches):
                at = first = first_row + batch * stride
                parts = []
                while at < first + num_rows:
                    while at >= end:  # more than once where windows are small
                        window = upcoming
                        plan, upcoming = pending.result()
                        end = upcoming.first_example
                        if end < stop:
                            pending = ahead.submit(self.plan, upcoming)
                    until = min(end, first + num_rows)
                    origin = window.first_example
                    parts.append(plan.rows(slice(at - origin, until - origin)))
                    at = until
                if len(parts) == 1:
                    yield first, parts[0]
                else:
                    yield first, PairPlan(*map(np.concatenate, zip(*parts, strict=True)))

    def _remember(self, window: Window, size: int) -> Window:
        """The next window, once the size of this one is known; remembers both."""
        if window.window + 1 < len(self.planner.windows(window.epoch)):
            epoch, number = window.epoch, window.window + 1
        else:
            epoch, number = window.epoch + 1, 0
        after = Window(window.first_example + size, epoch, number)
        with self._lock:
            self._sizes[window] = size
        self.add_known(window)
        self.add_known(after)
        return after


def read_position(position: dict) -> Window:
    """A Window from what `PretrainingStream.position` gave; UserError if it is none."""
    try:
        window = Window(**{name: int(value) for name, value in position.items()})
    except (AttributeError, TypeError, ValueError):
        window = None
    if window is None or min(dataclasses.astuple(window)) < 0:
        raise UserError(
            f"{position!r} is no input position: it needs epoch, window and first_example, "
            "whole numbers from 0"
        )
    return window
