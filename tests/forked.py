"""Runs modules as programs in forked processes, which have the slow imports already."""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

# They take seconds of every command.
_IMPORTS = ("bert_jax.train", "bert_jax.finetuning.run", "bert_jax.inference.finetuned")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_IMPORTS, "tensorflow"])


def run_module(
    module: str, arguments: list[str], *, cwd: Path, env: dict[str, str], timeout: float
) -> subprocess.CompletedProcess:
    """Does what `subprocess.run` does with `python -m MODULE ARGUMENTS`."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = _CONTEXT.Process(target=_run, args=(module, arguments, outputs, cwd, env))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(module, timeout)
        texts = [path.read_text() for path in outputs]
    return subprocess.CompletedProcess(arguments, process.exitcode, *texts)


def _run(
    module: str, arguments: list[str], outputs: list[Path], cwd: Path, env: dict[str, str]
) -> None:
    for number, path in enumerate(outputs, 1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
