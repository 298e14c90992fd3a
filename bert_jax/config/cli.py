"""Runs a command: parses its flags and reports a user's mistake in one sentence.

Exit status: 0 on success and after --help; 1 for a mistake in values or data, and for an error that
nobody foresaw; 2 for a mistake in the flags; 130 after Ctrl-C; 70 for an unforeseen error in one of
several processes. --traceback shows where an error comes from.
"""

import contextlib
import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

import bert_jax
from bert_jax import config
from bert_jax.base import compilation_cache, cpu_allocator, files, parts
from bert_jax.base.errors import UserError, printable
from bert_jax.base.progress import say
from bert_jax.config import finetuning
from bert_jax.config.command_line import ABSL_FLAGS, CONFIG_MODULE, UsageError, config_source, parse

# The status of one of several processes after an unexpected error. The usual cause is that
# another process died, and a restart continues the run; status 1 would mean a mistake.
CRASHED = 70
# How to install the packages that only some commands need, by the names of their modules.
_INSTALLED_BY = {
    "apache_beam": "pip install -e '.[beam]'",
    "gcsfs": "pip install -e '.[gcs]'",
    "huggingface_hub": "pip install -e '.[hub]'",
    "libtpu": "pip install -e '.[tpu]'",
    "sacremoses": "pip install -e '.[moses]'",
    "tensorflow": "with Python 3.11 to 3.13, it is installed with bert_jax",
    "wandb": "pip install -e '.[wandb]'",
}

# --help shows the flags of the main module. Flags that this module defines count as the caller's.
flags.disclaim_key_flags()


def run(main: Callable[[list[str]], int | None], *, words: bool = False) -> NoReturn:
    """Parses the flags, calls `main` with the remaining arguments, and exits.

    An error ends the process at once. Python would first wait for all threads, and orbax's
    threads end only 20 minutes after a failed save.
    """
    # Imports and JAX's tracing create many objects that stay. At Python 3.11's default of 700, the
    # collector would visit them again and again, which takes a tenth of the time of a start.
    gc.set_threshold(10_000)
    # Escape characters that the output's encoding lacks.
    sys.stdout.reconfigure(errors="backslashreplace")
    # absl's own default is INFO, which shows other libraries' messages.
    flags.FLAGS.verbosity = logging.WARNING
    # Every command reads directories, and a directory may name parts.
    flags.DEFINE_multi_string(
        "part",
        [],
        "MODULE:NAME of a part from outside bert_jax that a stored file may name.",
        allow_override=True,
    )
    flags.register_validator(
        "part", lambda names: all(":" in name for name in names), "it must be MODULE:NAME"
    )
    flags.DEFINE_boolean(
        "traceback", False, "Also show where an error comes from.", allow_override=True
    )
    warnings.showwarning = lambda message, *_: print(
        printable(f"warning: {message}"), file=sys.stderr, flush=True
    )

    def parse_flags(argv: list[str]) -> list[str]:
        try:
            remaining = parse(argv, words=words, load_stored=stored_config)
        except SystemExit:
            # absl exits with status 1 after --help.
            sys.exit(0)
        trust_flags()
        return remaining

    try:
        app.run(main, flags_parser=parse_flags)
    except SystemExit:
        raise
    except BaseException as error:  # A panic of a library in Rust is no Exception.
        status = _report(error, unforeseen=1)
        sys.stdout.flush()
        os._exit(status)


def stored_config(directory: str) -> ConfigDict | None:
    """Reads the config that a work directory was started with; None if it has none.

    `workdir.load_config` would load JAX.
    """
    path = files.checked_path(directory, "--workdir") / "config.json"
    if not path.exists():
        return None
    found = config.read_stored(path)
    return (finetuning.user_config(found) if "task" in found else found).lock()


def trust_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Trusts the parts named by flags and by the file of --config, but not by a stored config.

    See `bert_jax.base.parts`.
    """
    for name in values:
        if values[name].present and name != "config":
            parts.trust(values[name].value)
    if "config" in values:
        config_of_run, source = values["config"].value, config_source(values)
        if not source.is_stored:
            parts.trust(config_of_run)
        for key in source.flags:
            parts.trust(config_path.get_value(key, config_of_run))


def define_model_flag(other: str, description: str, is_required: bool = True) -> None:
    """Defines --model and another name for it."""
    flags.DEFINE_string("model", None, description, required=is_required, allow_overwrite=False)
    flags.DEFINE_alias(other, "model")


def refuse_flags(names: Iterable[str], why: str) -> None:
    """Refuses flags that have no effect; `why` says when, such as "without --data"."""
    for name in names:
        if flags.FLAGS[name].present:
            raise UsageError(f"--{name} has no effect {why}; leave it out")


def work_directory(alone: bool) -> str:
    """Returns the work directory that a flag or the config names, by default runs/NAME.

    Args:
      alone: Whether this is the only process. Several may have no directory in common but a named
        one.
    """
    if directory := flags.FLAGS.workdir or flags.FLAGS.config.workdir:
        return directory
    if not alone:
        raise UsageError(
            "--workdir is missing: a directory that all processes of the run can read and write"
        )
    file, _, argument = config_source().name.partition(":")
    name = "_".join(filter(None, (Path(file).stem, Path(argument).name)))
    say(f"The work directory is runs/{name}; --workdir=DIR names another one")
    return f"runs/{name}"


def end_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit, so that the process removes its temporary files.

    Python ignores exceptions in callbacks of the garbage collector. A signal may therefore have no
    effect: send it again.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def define_config_flag(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --config; `parse` takes a flag for each of its keys, such as --config.seed."""
    flags.DEFINE_string(
        "config",
        None,
        "A config: its name (tiny, roberta:base) or FILE.py. Its keys are flags too: "
        "--config.train.num_steps=200. `python -m bert_jax` lists the names; the files in "
        f"{os.path.dirname(config.__file__)} describe the keys.",
        flag_values=values,
    )


def define_run_flags(values: flags.FlagValues = flags.FLAGS, *, has_sweep: bool = False) -> None:
    """Defines the flags of a run of pre-training or fine-tuning."""
    define_config_flag(values)
    flags.DEFINE_string(
        "workdir",
        "",
        "Work directory; overrides config.workdir. By default, runs/NAME.",
        flag_values=values,
    )
    if has_sweep:
        text = "Run all rates, batch sizes, epochs and seeds of config.sweep."
        flags.DEFINE_bool("sweep", False, text, flag_values=values)
    define_host_flags(values)


def define_text_columns(of: str) -> None:
    """Defines --text_columns, the one or two columns of a file's texts."""
    flags.DEFINE_list("text_columns", [], of)
    # One column is a text, two are a pair.
    flags.register_validator(
        "text_columns", lambda names: len(names) <= 2, "it has at most 2 names"
    )


def define_embedding_flags(of: str, retrieval: str, default: str) -> None:
    """Defines flags of sentence embeddings; None means the `default`.

    Args:
      of: The flags with which pooling and length have an effect, and a colon.
      retrieval: The same for the prompts.
    """
    for name in ("query", "document"):
        flags.DEFINE_string(
            f"{name}_prompt", None, f"{retrieval} text before each {name}; {default}."
        )
    flags.DEFINE_enum(
        "pooling",
        None,
        ["mean", "cls"],
        f"{of} the mean over all tokens or the state of [CLS]; {default}, or mean.",
    )
    flags.DEFINE_integer(
        "max_length",
        None,
        f"{of} number of tokens at which texts are cut; {default}, or the longest it was trained "
        "with.",
    )


def define_host_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags that connect the processes of a run; see `joined_hosts`."""
    text = "For several processes without a cluster: "
    flags.DEFINE_string("coordinator", None, f"{text}HOST:PORT of process 0.", flag_values=values)
    flags.DEFINE_integer(
        "num_processes", None, f"{text}the number of processes.", flag_values=values
    )
    flags.DEFINE_integer(
        "process_id", None, f"{text}the number of this process, from 0.", flag_values=values
    )
    flags.DEFINE_string(
        "compilation_cache_dir",
        None,
        "Directory of compiled programs, which all processes share. It holds native code: nobody "
        "else may write to it.",
        flag_values=values,
    )


@contextlib.contextmanager
def joined_hosts(values: flags.FlagValues = flags.FLAGS) -> Iterator[bool]:
    """Joins the other processes of the run for the `with` block; yields whether there are none.

    Cloud TPU pod slices, Google Kubernetes Engine and Slurm are recognized. Elsewhere, the flags
    of `define_host_flags` are needed. An error in the block ends all processes of the run.
    """
    hosts = [values[name].value for name in ("coordinator", "num_processes", "process_id")]
    by_flags = any(value is not None for value in hosts)
    if by_flags and (None in hosts or ":" not in hosts[0]):
        raise UsageError(
            "--coordinator=HOST:PORT, --num_processes=N and --process_id=I must be given together"
        )
    cpu_allocator.prepare_process()
    # This import loads JAX, so the flags are checked first.
    from bert_jax.parallel import multihost

    alone = not by_flags and not multihost.is_launched_by_cluster()
    # The processes of a run must share a directory, because only process 0 writes programs.
    if alone or values.compilation_cache_dir:
        compilation_cache.keep_compiled_programs(values.compilation_cache_dir)
    if alone:
        yield True
        return
    multihost.join(*hosts)
    try:
        own = (*ABSL_FLAGS, "coordinator", "process_id")
        shared = {name: values[name].value for name in values if name not in own}
        multihost.check_equal([bert_jax.__version__, config.to_dict(shared)])
        yield False
    except BaseException as error:
        multihost.leave_failed(_report(error, unforeseen=CRASHED))


def _report(error: BaseException, unforeseen: int) -> int:
    """Prints an error in one sentence; returns the exit status."""
    message, status = _ending(error) or (f"error: {_in_one_line(error)}", unforeseen)
    if message and flags.FLAGS.is_parsed() and flags.FLAGS.traceback:
        traceback.print_exception(error)
    if message:
        print(printable(message), file=sys.stderr, flush=True)
    return status


def _in_one_line(error: BaseException) -> str:
    """Describes an error that nobody foresaw: its type, its text, and where it comes from.

    That is the last line of this package or of a config file that led to it.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    modules = (bert_jax.__name__, CONFIG_MODULE)
    ours = [x for x in frames if x[0].f_globals.get("__name__", "").split(".")[0] in modules]
    frame, line = (ours or frames)[-1]
    file = frame.f_code.co_filename.removeprefix(f"{Path(bert_jax.__file__).parents[1]}/")
    text = " ".join(str(error).split())[:1000]
    return f"{type(error).__name__}: {text} ({file}:{line}; --traceback shows more)"


def _ending(error: BaseException) -> tuple[str, int] | None:
    """Returns the message and exit status of an expected error; None for another."""
    match error:
        case UserError():
            return f"error: {error}", 1
        case UsageError():
            return f"error: {error}", 2
        case KeyboardInterrupt():
            return "interrupted", 130
        case SystemExit(code=int(status)):
            return "", status
        case BrokenPipeError():
            # The reader of stdout (`| head`) has ended. Python's flush at exit would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return "", 1
        case ModuleNotFoundError() if error.name in _INSTALLED_BY:
            return f"error: the package {error.name} is missing: {_INSTALLED_BY[error.name]}", 1
        case BrokenProcessPool():
            return (
                "error: a tokenizing process was killed, perhaps for lack of memory: lower "
                "data.num_processes and start again",
                1,
            )
        # XLA raises a RuntimeError with a list of buffers that fills pages.
        case RuntimeError() if "RESOURCE_EXHAUSTED" in str(error):
            lines = str(error).rpartition("RESOURCE_EXHAUSTED: ")[2].splitlines()
            # libtpu begins with a line such as "E1000: CompileTimeHbmOom:".
            cause = next((line for line in lines if not line.endswith(":")), lines[0])
            return (
                f"error: the device ran out of memory ({cause.rstrip('.')[:200]}); try a larger "
                "config.train.gradient_accumulation_steps, config.remat=full, "
                "config.sharding=fsdp, a smaller config.eval.batch_size or, in a new run, a "
                "smaller config.train.batch_size",
                1,
            )
        case OSError() if error.strerror:
            return f"error: {error.filename or 'writing'}: {error.strerror}", 1
    if problem := files.storage_problem(error):
        return f"error: storage or network: {problem}", 1
    return None
