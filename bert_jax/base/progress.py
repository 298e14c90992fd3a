"""Shows progress: a bar on a terminal, occasional plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.segment import Segment
from rich.table import Column, Table

from bert_jax.base.errors import printable

LINE_EVERY_SECONDS = 10.0


class Progress:
    """Shows the fraction of a task that is done, its rate and the remaining time.

    On a terminal this is a bar, which is removed at the end. Otherwise a line is printed at most
    every `LINE_EVERY_SECONDS`.

    Args:
      total: The number of units of work, or an estimate; None if it is unknown.
      unit: The name of a unit ("sequences"), for the rate.
      done: Units that were finished in an earlier run.
      enabled: False shows nothing, for processes other than the first.
      cost: Maps a number of units to their cost in any measure, if units differ in length. The
        fraction and the remaining time are computed from the cost.
    """

    def __init__(
        self,
        name: str,
        total: float | None,
        unit: str,
        *,
        done: float = 0,
        enabled: bool = True,
        cost: Callable[[float], float] = float,
    ):
        self._name, self._unit, self._cost, self._enabled = name, unit, cost, enabled
        self._total = None if total is None else cost(total)
        self._first = self._done = done
        self._started: float | None = None
        self._last_line = time.monotonic()
        self._note = ""
        self._console = terminal()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if self._enabled and self._console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20 if self._console.width >= 100 else 10),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
                # A narrow terminal may cut this column.
                TextColumn("{task.fields[note]}", markup=False, table_column=Column(no_wrap=True)),
                console=self._console,
                transient=True,
            )
            completed = self._cost(self._done)
            self._task = self._bar.add_task(
                self._name, total=self._total, completed=completed, note=""
            )
            self._bar.start()
        return self

    def __exit__(self, *_):
        if self._bar:
            self._bar.stop()

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Counts `amount` more units as done.

        `note` is shown instead of the rate, so it should contain the rate.
        """
        self._done += amount
        now = time.monotonic()
        if self._started is None:
            # The rate does not include the time before the first unit, such as compilation.
            self._first, self._started = self._done, now
        rate = (self._done - self._first) / max(now - self._started, 1e-9)
        note = note or (f"{_short(rate)} {self._unit}/s" if rate else "")
        if self._bar:
            self._bar.update(self._task, completed=self._cost(self._done), note=note)
        elif self._enabled and now - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = now
            texts = []
            if self._total:
                first, done = self._cost(self._first), self._cost(self._done)
                texts.append(f"{100 * done / self._total:.0f} %")
                if done > first:
                    seconds = now - self._started
                    left = round(max(0.0, self._total - done) / (done - first) * seconds)
                    texts.append(f"{timedelta(seconds=left)} left")
            else:
                texts.append(f"{self._done:,.0f} {self._unit}")
            print(f"{self._name}: " + ", ".join(filter(None, [*texts, note])), flush=True)

    def message(self, text: str) -> None:
        """Prints a line, above the bar on a terminal."""
        if self._enabled:
            say(text, self._console)


def say(text: str, console: Console | None = None) -> None:
    """Prints a sentence: wrapped between words on a terminal, one line elsewhere."""
    console = console or terminal()
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)


def say_next(commands: Mapping[str, str]) -> None:
    """Prints what to do next: a `python -m bert_jax.COMMAND` for each purpose."""
    heading = "what next"
    for purpose, command in commands.items():
        print(f"{heading:13}{purpose}:\n{'':13}python -m bert_jax.{command}")
        heading = ""


def terminal(**options: Any) -> Console:
    """Makes a console for standard output; rich.console.Console takes the `options`.

    It shows text as it is. A path or a token such as [MASK] is not markup.
    """
    return _Console(markup=False, emoji=False, **options)


class _Console(Console):
    """A console that escapes the control characters of texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def empty_table(title: str, *columns: str) -> Table:
    """Makes a table without rows; all columns but the first are for numbers."""
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _short(value: float) -> str:
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.1f}{suffix}"
    return f"{value:.1f}"
