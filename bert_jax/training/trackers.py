"""Experiment trackers, which show a run beside others: Weights & Biases and trackio."""

import contextlib
import importlib.util
import io
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from typing import Any, Self

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import flatten, to_dict
from bert_jax.parallel import multihost

# The file of a work directory with the `id` under which a resumed run continues.
TRACKING = "tracking.json"
_PROJECT = "bert_jax"
# The names of final results begin with it.
_RESULTS_PREFIX = "results/"
# Settings of wandb, which environment variables of the same name, such as WANDB_CONSOLE, override.
# By default, wandb would also send the output of the terminal, the git repository, the code, the
# installed packages and a description of the machine.
_WANDB_SETTINGS = {
    "project": _PROJECT,
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


class _Wandb:
    """A run of Weights & Biases, kept on disk if the service cannot be reached.

    Attributes:
      where: Where the run can be seen, or what sends it there.
    """

    def __init__(self, config: ConfigDict, directory: epath.Path, run_id: str):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        settings = dict(_WANDB_SETTINGS)
        if "WANDB_NAME" not in os.environ:
            settings["run_name"] = directory.name
        if "WANDB_DIR" not in os.environ:
            is_remote = files.is_remote(directory)
            folder = tempfile.mkdtemp(prefix="bert_jax_wandb_") if is_remote else str(directory)
            settings["root_dir"] = folder
        own = {k: v for k, v in settings.items() if f"WANDB_{k.upper()}" not in os.environ}

        def start(**more: str) -> Any:
            return wandb.init(
                id=run_id,
                resume="allow",
                config=to_dict(config),
                # Other runs of the user, such as one in a notebook, stay open.
                reinit="create_new",
                settings=wandb.Settings(**own, **more),
            )

        try:
            self._run = start()
        except Exception as error:
            problem = files.first_line(error).rstrip(".")
            say(f"warning: wandb: {problem}; this part of the run stays on disk")
            # Otherwise, the background process of wandb would refuse the id as used.
            wandb.teardown()
            self._run = start(mode="offline")
        # The steps of a resumed run need not increase.
        self._run.define_metric("*", step_metric="step", step_sync=True)
        folder = os.path.dirname(self._run.dir)
        self.where = f"`wandb sync {folder}` sends the run" if self._run.offline else self._run.url

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def summarize(self, step: int, values: Mapping[str, float]) -> None:
        self._run.summary.update(values)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Trackio:
    """A run of trackio. What a server does not take stays in trackio's own directory.

    Attributes:
      where: What shows the run.
    """

    def __init__(self, config: ConfigDict, directory: epath.Path, run_id: str):
        import trackio

        self._trackio = trackio
        project = os.environ.get("TRACKIO_PROJECT") or _PROJECT
        # trackio describes the run in several lines, and at the end too.
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=project,
                # trackio identifies a run by its name.
                name=f"{directory.name}-{run_id}",
                config=to_dict(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.where = f"`trackio show --project {project}` shows the run {self._run.name}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    summarize = log

    def finish(self, failed: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


_KINDS = {"wandb": _Wandb, "trackio": _Trackio}


class Trackers:
    """Sends a run to the trackers of `config.log.trackers`; a context manager that ends them.

    Only process 0 sends. A tracker that fails is dropped with a warning; the run continues.

    Args:
      config: The config of the run, which is sent first.
      directory: The work directory; its name is the name of the tracked run.

    Attributes:
      is_continued: Whether an earlier process has sent a part of the run.

    Raises:
      UserError: The file with the id is damaged.
    """

    def __init__(self, config: ConfigDict, directory: epath.Path):
        self._open: dict[str, _Wandb | _Trackio] = {}
        names = config.log.trackers if multihost.is_first() else ()
        path = directory / TRACKING
        self.is_continued = bool(names) and path.exists()
        if not names:
            return
        if not self.is_continued:
            files.write_json(path, {"id": secrets.token_hex(4)})
        run_id = files.read_json(path, {"id": ""})["id"]
        if not re.fullmatch(r"[0-9a-z]+", run_id):
            raise UserError(f"{path} is damaged: the id is {run_id!r}; remove the file")
        for name in names:
            with self._surviving(name):
                tracker = _KINDS[name](config, directory, run_id)
                self._open[name] = tracker
                say(f"{name}: {tracker.where}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends the values after a step, by names such as "train/loss"."""
        for name, tracker in list(self._open.items()):
            with self._surviving(name):
                tracker.log(step, values)

    def summarize(self, results: Mapping[str, Any]) -> None:
        """Sends the numbers of results.json; names of nested values are joined by dots."""
        numbers = {
            f"{_RESULTS_PREFIX}{key}": value
            for key, value in flatten(results)
            if isinstance(value, int | float)
        }
        for name, tracker in list(self._open.items()):
            with self._surviving(name):
                tracker.summarize(results["step"], numbers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_) -> None:
        for name, tracker in list(self._open.items()):
            with self._surviving(name):
                tracker.finish(failed=error_type is not None)

    @contextlib.contextmanager
    def _surviving(self, name: str):
        """Turns any error of a tracker into a warning, and sends it nothing more."""
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            say(f"warning: {name}: {files.first_line(error)}; the run goes on without this tracker")


def check_installed(config: ConfigDict) -> None:
    """Refuses trackers whose packages are missing.

    Raises:
      UserError: The message names the extra.
    """
    for name in config.log.trackers if multihost.is_first() else ():
        spec = importlib.util.find_spec(name)
        # A folder "wandb", which wandb itself makes, looks like a package without a file.
        if spec is None or spec.origin is None:
            raise UserError(
                f"config.log.trackers has {name}, whose package is missing: "
                f"pip install -e '.[{name}]'"
            )
