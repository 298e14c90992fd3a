"""Errors in the stream of batches are raised unchanged, and never block a program."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.batches.fakes import FakeStore
from tests.batches.small_stream import DOCUMENTS, stream


@pytest.mark.slow
def test_program_ends_while_an_iterator_is_open():
    program = (
        "from tests.batches.small_stream import stream\n"
        "batches = stream().batches(0, 10**9)\n"
        "for _ in range(50): next(batches)\n"
        "print('leaving')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and done.stdout == "leaving\n"
    assert "Exception ignored" not in done.stderr and "Traceback" not in done.stderr


class BrokenStore(FakeStore):
    def tokens_at(self, positions):
        if len(self.read) == 4:
            raise OSError(5, "Input/output error", "tokens-00000.bin")
        return super().tokens_at(positions)


def test_an_unreadable_store_raises_its_own_error():
    with pytest.raises(OSError, match="tokens-00000.bin"):
        list(stream(BrokenStore(DOCUMENTS)).batches(0, 50))
