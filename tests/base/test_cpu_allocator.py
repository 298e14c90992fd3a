"""Memory is reused between steps, and only one step at a time uses it."""

import subprocess
import sys

import pytest

from bert_jax.base import cpu_allocator
from tests import runs

CALLS = 10
# The pages of the program's temporaries, 64 MiB.
PAGES = 2**26 // 4096
PROGRAM = f"""
import resource, sys
from bert_jax.base import cpu_allocator
if 'unprepared' not in sys.argv:
    cpu_allocator.prepare_process()
import jax, jax.numpy as jnp

@jax.jit
def program(x):
    large = jnp.sin(x + jnp.arange(2**24, dtype=jnp.float32)).reshape(4096, 4096)
    return jnp.sum(large @ jnp.ones((4096, 2)))

def faults(calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for i in range(calls):
        program(float(i)).block_until_ready()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults({CALLS})
print(faults({CALLS}))
program(-1.0)
print(program(0.5).is_ready())
"""


def run(*arguments, **environment):
    env = runs.environment() | environment
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=runs.ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    faults, ready = done.stdout.split()
    return int(faults), ready == "True"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
@pytest.mark.slow
def test_freed_memory_is_reused_by_the_next_call():
    faults, _ = run()
    assert faults < CALLS * PAGES / 3
    # The user's own settings are not changed.
    faults, _ = run(MALLOC_TRIM_THRESHOLD_="100000")
    assert faults >= CALLS * PAGES


@pytest.mark.slow
def test_programs_run_one_at_a_time():
    """Otherwise the temporaries of both would exist at the same time."""
    assert run()[1]
    assert not run("unprepared")[1], "the program is too short for this test"


@pytest.mark.parametrize("name", ["nvidia0", "accel0", "vfio/0", "kfd"])
def test_with_an_accelerator_nothing_is_changed(name, tmp_path, monkeypatch):
    (tmp_path / "nvidiactl").touch()
    assert not cpu_allocator._has_accelerator(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert cpu_allocator._has_accelerator(tmp_path)
