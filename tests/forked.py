"""Runs modules as programs in forked processes, in which the slow imports are already loaded."""

import atexit
import functools
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import cheap

# These imports take seconds in every command.
_IMPORTS = (
    "bert_jax.commands.pretrain",
    "bert_jax.commands.finetune",
    "bert_jax.inference.finetuned",
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([*_IMPORTS, "tensorflow"])


class Program:
    """A process that runs `python -m MODULE ARGUMENTS`, with the methods of `subprocess.Popen`."""

    def __init__(self, module: str, arguments: list[str], *, cwd: Path, env: dict[str, str]):
        self._folder = tempfile.TemporaryDirectory()
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        process_args = module, arguments, self._outputs, cwd, env
        self._process = _CONTEXT.Process(target=_run, args=process_args)
        self._process.start()
        self.pid = self._process.pid
        self.send_signal = functools.partial(os.kill, self.pid)
        self.kill = self._process.kill

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the process; returns its stdout and stderr."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        stdout, stderr = (path.read_text() for path in self._outputs)
        return stdout, stderr


def _run(
    module: str, arguments: list[str], outputs: list[Path], cwd: Path, env: dict[str, str]
) -> None:
    for number, path in enumerate(outputs, 1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    # As python -m does.
    sys.path.insert(0, str(cwd))
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    try:
        with cheap.figures(drawn=False), cheap.unsynced_files():
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
