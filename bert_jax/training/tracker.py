"""Weights & Biases, which shows a run beside others."""

import contextlib
import importlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any, Self

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.progress import say
from bert_jax.config import flatten, to_dict
from bert_jax.parallel import multihost

# The file of a work directory with the `id` under which a resumed run continues.
TRACKING = "tracking.json"
# The names of final results begin with it.
_RESULTS_PREFIX = "results/"
# Settings of wandb, which environment variables of the same name, such as WANDB_CONSOLE, override.
# By default, wandb would also send the output of the terminal, the git repository, the code, the
# installed packages and a description of the machine.
_SETTINGS = {
    "project": "bert_jax",
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    # The loop prints its own lines, and a work directory has no links.
    "silent": True,
    "symlink": False,
    # Seconds. What is not sent by then stays on disk, where `wandb sync` finds it.
    "init_timeout": 30,
    "finish_timeout": 30,
}


class Tracker:
    """Sends a run to Weights & Biases with `config.log.wandb`; a context manager that ends it.

    Only process 0 sends. After an error there is a warning, nothing more is sent, and the run
    continues. `WANDB_MODE=offline` keeps everything on disk.
    """

    def __init__(self, config: ConfigDict, directory: epath.Path):
        self._run: Any = None
        if not (config.log.wandb and multihost.is_first()):
            return
        path = directory / TRACKING
        if not path.exists():
            files.write_json(path, {"id": secrets.token_hex(4)})
        run_id = files.read_json(path)["id"]
        with self._surviving():
            self._run = _start(config, directory, run_id)
            # The steps of a resumed run need not increase.
            self._run.define_metric("*", step_metric="step", step_sync=True)
            say(f"wandb: {self._run.url or os.path.dirname(self._run.dir)}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values after a step, by names such as "train/loss"."""
        if self._run:
            with self._surviving():
                self._run.log({"step": step, **values})

    def summarize(self, results: Mapping[str, Any]) -> None:
        """Sends the numbers of results.json; names of nested values are joined by dots."""
        if self._run:
            with self._surviving():
                self._run.summary.update(
                    {
                        f"{_RESULTS_PREFIX}{key}": value
                        for key, value in flatten(results)
                        if isinstance(value, int | float)
                    }
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_) -> None:
        if self._run:
            with self._surviving():
                self._run.finish(exit_code=int(error_type is not None))

    @contextlib.contextmanager
    def _surviving(self):
        """Turns any error into a warning, and sends nothing more."""
        try:
            yield
        except Exception as error:
            self._run = None
            say(f"warning: wandb: {files.first_line(error)}; the run goes on without it")


def check_installed(config: ConfigDict) -> None:
    """Refuses `config.log.wandb` without its package, before any work."""
    if config.log.wandb:
        importlib.import_module("wandb")


def _start(config: ConfigDict, directory: epath.Path, run_id: str) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings = dict(_SETTINGS)
    if "WANDB_NAME" not in os.environ:
        settings["run_name"] = directory.name
    if "WANDB_DIR" not in os.environ:
        is_remote = files.is_remote(directory)
        folder = tempfile.mkdtemp(prefix="bert_jax_wandb_") if is_remote else str(directory)
        settings["root_dir"] = folder
    own = {k: v for k, v in settings.items() if f"WANDB_{k.upper()}" not in os.environ}

    return wandb.init(
        id=run_id,
        resume="allow",
        config=to_dict(config),
        # Other runs of the user, such as one in a notebook, stay open.
        reinit="create_new",
        settings=wandb.Settings(**own),
    )
