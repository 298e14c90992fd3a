"""The collective functions of several processes, and the rows that each process makes."""

import json
import sys

from tests import runs
from tests.parallel.processes import finish, free_address


def test_batches_and_collective_functions(tmp_path):
    """Meshes that mix or share the devices of two processes, all collective functions, an error."""
    address = free_address()
    files = [tmp_path / str(number) for number in range(2)]
    processes = [
        runs.start(
            [
                *(sys.executable, "-m", "tests.parallel.hosts_worker", str(file)),
                *(f"--coordinator={address}", "--num_processes=2", f"--process_id={number}"),
            ],
            devices=2,
        )
        for number, file in enumerate(files)
    ]
    (status, _, err), (other_status, _, other_err) = finish(processes)
    warning, _, error = err.partition("\n")
    assert f"{tmp_path}/checkpoints/2 is damaged (" in warning
    assert (status, error) == (1, "error: process 1 failed: it is wrong\n")
    assert (other_status, other_err) == (1, "error: it is wrong\n")
    seen = [json.loads(file.read_text()) for file in files]
    for name, num_shards, shards in (
        ("straight", 4, ([0, 1], [2, 3])),
        ("mixed", 4, ([0, 2], [1, 3])),
        ("shared", 2, ([0, 1], [0, 1])),
    ):
        for number in range(2):
            expected = {"shards": shards[number], "num_shards": num_shards, "equal": True}
            assert seen[number][name] == expected, name
    first, second = seen
    assert first["on process zero"] == second["on process zero"] == {"I am": 0}
    assert first["first fails"].startswith("OSError") and "/full/disk" in first["first fails"]
    assert second["first fails"].startswith("UserError: process 0 failed: ")
    assert "/full/disk" in second["first fails"]
    assert first["vote"] == second["vote"] == 4
    for one in seen:
        assert one["restored"] == {"step": 1, "resume": {"step": 1}, "equal": True}
        assert one["guard"] == {
            "polls": [False, False, False, True, True],
            "noted": False,
            "name": "SIGTERM",
        }
