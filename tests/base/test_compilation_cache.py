"""Compiled programs are kept between processes, and a cache that fails does no harm."""

import os
import subprocess
import sys
import time

import jax
import pytest

from tests import runs

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 10, 2), reason="no cache with this version of jax"
)
# Prints the bits of a result, and how many programs were read and written.
PROGRAM = """
import sys
from bert_jax.base.compilation_cache import keep_compiled_programs
import jax, jax.numpy as jnp
counts = {"hits": 0, "misses": 0}
def count(event, **_):
    for name in counts:
        counts[name] += event == f"/jax/compilation_cache/cache_{name}"
jax.monitoring.register_event_listener(count)
keep_compiled_programs(*sys.argv[1:])
x = jnp.sin(jnp.arange(4096, dtype=jnp.float32)).reshape(64, 64)
print(float(jax.jit(lambda x: jnp.tanh(x @ x).sum())(x)).hex(), counts["hits"], counts["misses"])
"""


def environment(home, **variables):
    """Returns an environment in which no cache is set and the user's caches are in `home`."""
    env = runs.environment() | {"XDG_CACHE_HOME": str(home)}
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        del env[name]
    return env | variables


def run(home, *directory, **variables):
    """Runs PROGRAM; returns the result's bits, and the numbers of programs read and written."""
    command = [sys.executable, "-c", PROGRAM, *map(str, directory)]
    env = environment(home, **variables)
    done = subprocess.run(command, cwd=runs.ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    result, hits, misses = done.stdout.split()
    return result, int(hits), int(misses)


def entries(home):
    return sorted(home.glob("bert_jax/compiled/*/*-cache"))


def test_programs_are_read_again_unless_they_were_not_used_for_a_month(tmp_path):
    for age_days in (40, 20):
        entry = tmp_path / "bert_jax" / "compiled" / "other" / f"{age_days}-cache"
        entry.parent.mkdir(parents=True, exist_ok=True)
        entry.touch()
        os.utime(entry, times=(time.time() - age_days * 24 * 3600,) * 2)
    result, hits, misses = run(tmp_path)
    assert hits == 0 and misses == len(entries(tmp_path)) - 1 > 0
    assert [path.name for path in entries(tmp_path) if path.parent == entry.parent] == ["20-cache"]
    assert run(tmp_path) == (result, misses, 0)


def test_there_is_no_cache_if_it_cannot_be_written(tmp_path):
    # A file instead of a directory, which not even root can write to.
    (tmp_path / "file").touch()
    assert run(tmp_path / "file")[1:] == (0, 0)
    assert os.listdir(tmp_path) == ["file"]


def test_the_directory_that_was_typed_is_used(tmp_path):
    named = tmp_path / "shared" / "compiled"
    other = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "other"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    _, hits, misses = run(tmp_path / "home", named, **other)
    assert hits == 0 and misses == len(sorted(named.glob("*-cache"))) > 0
    assert os.listdir(tmp_path) == ["shared"]
