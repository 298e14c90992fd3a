"""Progress as lines in a file and as a bar on a terminal."""

import re

import pytest
from rich.table import Table
from rich.text import Text

from bert_jax.base import progress as progress_lib
from bert_jax.base.progress import Progress, say, terminal


class Clock:
    """A clock whose time tests set."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(progress_lib.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_lines_without_a_terminal(clock, capsys):
    with Progress("train", 100, "steps") as progress:
        for step in range(1, 101):
            clock.now += 0.5
            progress.advance(1, f"loss {100 / step:.3f}, MLM {step / 200:.1%}")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "train: 20 %, 0:00:40 left, loss 5.000, MLM 10.0%",
        "train: 40 %, 0:00:30 left, loss 2.500, MLM 20.0%",
        "train: 60 %, 0:00:20 left, loss 1.667, MLM 30.0%",
        "train: 80 %, 0:00:10 left, loss 1.250, MLM 40.0%",
        "train: 100 %, 0:00:00 left, loss 1.000, MLM 50.0%",
    ]


def test_earlier_work_does_not_count_in_the_rate(clock, capsys):
    with Progress("train", 1000, "steps", done=900) as progress:
        for _ in range(11):
            clock.now += 2.0
            progress.advance()
    lines = capsys.readouterr().out.splitlines()
    # The first step includes compilation and does not count in the rate.
    assert lines == [
        "train: 90 %, 0:03:10 left, 0.5 steps/s",
        "train: 91 %, 0:03:00 left, 0.5 steps/s",
    ]


def test_units_of_different_lengths(clock, capsys):
    """Ten steps of one second each, then ten of four seconds."""
    cost = lambda steps: min(steps, 10) + 4 * max(steps - 10, 0)  # noqa: E731
    with Progress("train", 20, "steps", cost=cost) as progress:
        for step in range(1, 21):
            clock.now += 1.0 if step <= 10 else 4.0
            progress.advance()
    assert [line.replace("train: ", "") for line in capsys.readouterr().out.splitlines()] == [
        "20 %, 0:00:40 left, 1.0 steps/s",
        "44 %, 0:00:28 left, 0.6 steps/s",
        "68 %, 0:00:16 left, 0.5 steps/s",
        "92 %, 0:00:04 left, 0.4 steps/s",
    ]


def test_without_a_total(clock, capsys):
    with Progress("reading", None, "MB") as progress:
        for _ in range(12):
            clock.now += 1.0
            progress.advance(2.5)
        progress.message("half [bold]way[/bold]: 3 of 7")
    assert capsys.readouterr().out.splitlines() == [
        "reading: 25 MB, 2.5 MB/s",
        "half [bold]way[/bold]: 3 of 7",
    ]


def test_disabled_is_silent(clock, capsys):
    with Progress("train", 2, "steps", enabled=False) as progress:
        clock.now += 100
        progress.advance()
        progress.message("hello")
    assert capsys.readouterr().out == ""


def test_text_of_the_user_is_not_markup(capsys):
    table = Table("t[red]y", title="on t[/x]")
    table.add_row("[MASK] :smile:")
    terminal().print(table)
    say("t[/x] :smile:")
    out = capsys.readouterr().out
    for text in ("t[red]y", "on t[/x]", "[MASK] :smile:", "t[/x] :smile:"):
        assert text in out


def test_control_characters_are_escaped(capsys):
    hostile = "a\x1b]0;title\x07\r\x9b2Jb\u202ec\u2066\tc"
    table = Table("name")
    table.add_row(hostile)
    terminal(force_terminal=True).print(table)
    with Progress("train", 2, "steps") as progress:
        progress.message(hostile)
    say(hostile)
    terminal().print(Text(hostile))
    out = capsys.readouterr().out
    assert out.count(r"a\u001b]0;tit") == 4 and out.count(r"\u009b2Jb\u202ec\u2066") == 3
    assert not re.search(r"[\x07\r\x9b\u202e\u2066]|\x1b\]", out)
