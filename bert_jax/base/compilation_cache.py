"""Keeps compiled programs on disk, so that a command that starts again need not compile."""

import contextlib
import hashlib
import os
import platform
import re
import time
from pathlib import Path

from bert_jax.base import files
from bert_jax.base.processes import num_cores

# Programs that were not read for this long are removed.
_KEPT_SECONDS = 30 * 24 * 3600
# Version 0.10.2 of jaxlib is the first to read what it wrote on a CPU with AVX-512 without printing
# errors (jax-ml/jax#38445).
_FIRST_VERSION = (0, 10, 2)


def keep_compiled_programs(directory: str | None = None) -> None:
    """Turns on JAX's persistent compilation cache, in a directory or in a folder of the user.

    Without a directory, it does nothing if the user has set `JAX_COMPILATION_CACHE_DIR` or turned
    the cache off with `JAX_ENABLE_COMPILATION_CACHE=false`, or if the folder cannot be written. It
    imports JAX.
    """
    import jax

    if directory:
        path = files.checked_path(directory, "--compilation_cache_dir")
        path.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(path))
        return
    if jax.config.jax_compilation_cache_dir is not None:
        return
    if not jax.config.jax_enable_compilation_cache or jax.__version_info__ < _FIRST_VERSION:
        return
    try:
        folder = _folder(jax.__version__)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_old(folder.parent)
    except (OSError, RuntimeError):
        # There is no home, or it is read-only.
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def _folder(version: str) -> Path:
    """Returns a folder for this version of JAX and this machine.

    Programs for the CPU have instructions that other CPUs may lack, and as many tasks as this
    machine has cores. Not every version of JAX compares these.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    machine = f"{platform.machine()} {platform.processor()} {num_cores()}"
    with contextlib.suppress(OSError):
        # The names of processors and their instruction sets; other lines change with time.
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        machine += str(sorted({x for x in lines if re.match(r"model name|flags|CPU|Features", x)}))
    name = f"{version}-{hashlib.sha256(machine.encode()).hexdigest()[:16]}"
    return Path(home, "bert_jax", "compiled", name)


def _remove_old(folder: Path) -> None:
    for entry in folder.glob("*/*-cache"):
        times = entry.stat()
        if time.time() - max(times.st_atime, times.st_mtime) > _KEPT_SECONDS:
            entry.unlink(missing_ok=True)
