"""Runs a command: flags in, one clear sentence out when the user made a mistake.

Exit status: 0; 1 for a mistake in values or data and for a bug (with its
traceback); 2 for a mistake in the flags themselves; 130 when interrupted.
"""

import contextlib
import difflib
import errno
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags, config_path

from bert_jax import cpu_allocator, storage
from bert_jax.errors import UserError
from bert_jax.parallel import launch

# What a disk or a path can do to us that the user can mend.
_USER_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        "ENOSPC EDQUOT EFBIG EROFS EIO ESTALE ETXTBSY EACCES EPERM ENOENT ENOTDIR EISDIR EEXIST "
        "ENAMETOOLONG ELOOP"
    ).split()
)

# After a signal that was lost in a callback, which will be over by then.
_AGAIN_SECONDS = 0.05


class UsageError(Exception):
    """A mistake in the flags, told in one sentence; exit status 2."""


def run(main: Callable[[list[str]], int | None], *, words: bool = False) -> NoReturn:
    """Parses the flags, calls `main` with what is left, and exits.

    Args:
      main: Takes the program's name and, with `words`, the arguments that are no flags.
      words: Whether there may be such arguments, before, between or after the flags.
    """

    if isinstance(sys.stdout, io.TextIOWrapper):
        # Of an output in another encoding than Unicode's, letters that it lacks.
        sys.stdout.reconfigure(errors="backslashreplace")

    def flags_parser(argv: Sequence[str]) -> list[str]:
        return parse(argv, words=words)

    try:
        app.run(lambda argv: _quietly(main, argv), flags_parser=flags_parser)
    except (Exception, KeyboardInterrupt) as error:
        ending = _ending(error)
        if ending is None:
            raise
        _exit(*ending)


def end_on_sigterm() -> None:
    """From now on SIGTERM ends this process as Ctrl-C does: what is half written is removed.

    Neither is lost where Python drops what a signal's handler raises: inside a callback, of
    which JAX has one in the garbage collector.
    """
    before = sys.unraisablehook
    lost, in_hook = signal.SIGTERM, False

    def stop(number, _frame):
        if in_hook:
            # What is raised in there is dropped as well.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        elif number == signal.SIGALRM:
            signal.raise_signal(lost)
        else:
            sys.exit(128 + signal.SIGTERM)

    def hook(unraisable):
        nonlocal lost, in_hook
        if unraisable.exc_type not in (SystemExit, KeyboardInterrupt):
            before(unraisable)
            return
        in_hook = True
        lost = signal.SIGTERM if unraisable.exc_type is SystemExit else signal.SIGINT
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        in_hook = False

    sys.unraisablehook = hook
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)


def define_host_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags by which the processes of a run find each other; see `joined_hosts`."""
    flags.DEFINE_string(
        "coordinator",
        "",
        "Several hosts, by hand: HOST:PORT where process 0 is to be found.",
        flag_values=values,
    )
    for name, text in (("num_processes", "how many processes"), ("process_id", "this one, from 0")):
        flags.DEFINE_integer(name, None, f"Several hosts, by hand: {text}.", flag_values=values)


@contextlib.contextmanager
def joined_hosts(values: flags.FlagValues = flags.FLAGS) -> Iterator[None]:
    """The time in which this process is one of several, where flags or environment say so.

    On Cloud TPU VMs of a pod slice, Google Kubernetes Engine and Slurm the processes find
    each other by themselves; elsewhere the three flags say how. Without either it is one
    process. What is raised inside ends all the processes of the run.

    Raises:
      UsageError: the flags are half given, or cannot be.
    """
    by_hand = _by_hand(values)
    cpu_allocator.keep_freed_memory()
    if by_hand is None and not launch.is_one_of_several():
        cpu_allocator.wait_for_each_program()
        yield
        return
    launch.watch(by_hand)
    cpu_allocator.wait_for_each_program()
    from bert_jax.parallel import multihost  # Loads JAX, which only the watched process needs.

    def ending(error: BaseException) -> tuple[str, int]:
        return _ending(error) or ("".join(traceback.format_exception(error)).rstrip(), 1)

    with multihost.joined(by_hand, ending):
        yield


def _by_hand(values: flags.FlagValues) -> launch.ByHand | None:
    names = ("coordinator", "num_processes", "process_id")
    coordinator, num_processes, process_id = given = [values[name].value for name in names]
    missing = [f"--{name}" for name, value in zip(names, given, strict=True) if value in ("", None)]
    if len(missing) == len(names):
        return None
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} missing: --coordinator=HOST:PORT, --num_processes=N and "
            "--process_id=I are given together"
        )
    port = re.fullmatch(r"(?:[^\s:]+|\[[\da-fA-F:]+\]):(\d{1,5})", coordinator)
    if port is None or not 1 <= int(port[1]) <= 65535:
        raise UsageError(f"--coordinator={coordinator} is no HOST:PORT, such as 10.0.0.2:8476")
    if num_processes < 1:
        raise UsageError(f"--num_processes={num_processes} must be 1 or more")
    if not 0 <= process_id < num_processes:
        raise UsageError(
            f"--process_id={process_id} must be from 0 to {num_processes - 1}, as "
            f"--num_processes={num_processes}"
        )
    return launch.ByHand(coordinator, num_processes, process_id)


def _ending(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error, and the exit status; None of one that is no user's."""
    match error:
        case UserError():
            return f"error: {error}", 1
        case UsageError():
            return f"error: {error}", 2
        case KeyboardInterrupt():
            return "interrupted", 130
        case BrokenPipeError():
            # The reader (`| head`) has gone; nothing is left to say, nor at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return "", 1
        # XLA's, which is a RuntimeError; what it says of the buffers fills pages.
        case RuntimeError() if "RESOURCE_EXHAUSTED" in str(error):
            said = str(error).partition("RESOURCE_EXHAUSTED: ")[2].splitlines()[0].rstrip(".")
            return (
                f"error: the device ran out of memory ({said[:200]}); what helps: a smaller "
                "config.train.batch_size, a larger config.train.gradient_accumulation_steps, "
                "config.remat='full', or a sharding that divides the parameters",
                1,
            )
        case MemoryError():
            said = str(error).splitlines()[0] if str(error) else "no more was to be had"
            return (
                f"error: this machine ran out of memory ({said[:200]}); what helps: a smaller "
                "config.train.batch_size or config.eval.batch_size",
                1,
            )
        case OSError() if error.errno in _USER_ERRNOS:
            return f"error: {error.filename or 'writing'}: {error.strerror}", 1
    if said := storage.problem(error):
        return f"error: storage or network: {said}", 1
    return None


def parse(
    argv: Sequence[str], values: flags.FlagValues = flags.FLAGS, *, words: bool = False
) -> list[str]:
    """Parses flags; returns what is left, the program's name and, where there may be, words.

    Raises:
      UsageError: for an unknown flag or config key, a value of the wrong type, a
        missing flag or an argument that is no flag.
      UserError: if the config file cannot be loaded.
    """
    argv = [_with_home(argument) for argument in argv]
    values.set_gnu_getopt(words)
    for name in list(values):
        if config_flags.is_config_flag(values[name]):
            config = _check_config(name, argv, values)
            argv = _quote_texts(name, argv, config) if config is not None else argv
    try:
        left = values(argv)
    except flags.UnrecognizedFlagError as e:
        if words and re.search(r"\s", e.flagname):
            raise UsageError(
                f"unknown flag --{e.flagname}; a text that begins with - stands after --, behind "
                "all flags"
            ) from e
        names = [name for name in values if name.partition(".")[0] not in _ABSL_FLAGS]
        raise UsageError(f"unknown flag --{e.flagname}{_nearest(e.flagname, names, '--')}") from e
    except flags.Error as e:
        raise UsageError(_one_sentence(str(e))) from e
    if len(left) > 1 and not words:
        raise UsageError(f"unexpected argument {left[1]!r}: flags are written --NAME=VALUE")
    for name in list(values):
        if config_flags.is_config_flag(values[name]) and values[name].value is None:
            raise UsageError(f"--{name} is missing: a config file, such as configs/tiny.py")
    return left


# Defined by absl for every program; never what a misspelt flag meant.
_ABSL_FLAGS = frozenset(flags.FLAGS)


def _with_home(argument: str) -> str:
    """A flag with ~/ as the user's home where a path begins; of a flag, shells leave it alone."""
    if not argument.startswith("-"):
        return argument
    return re.sub(r"(?<=[=,'\"])~(?=/)", lambda _: os.path.expanduser("~"), argument)


def _quietly(main: Callable[[list[str]], int | None], argv: list[str]) -> int | None:
    # absl asks for INFO when --verbosity is not given: other libraries' chatter.
    if not any(a.lstrip("-").startswith(("v=", "verbosity")) or a == "-v" for a in sys.argv[1:]):
        logging.set_verbosity(logging.WARNING)
    return main(argv)


def _check_config(name: str, argv: Sequence[str], values: flags.FlagValues) -> ConfigDict | None:
    """Loads the config file once beforehand, and looks up every key that flags override."""
    path = None
    keys = []
    for _, flag, value in _flags_in(argv):
        if flag == name:
            path = value
        elif flag.startswith(f"{name}."):
            keys.append(flag.removeprefix(f"{name}."))
    if path is None:
        path = values[name].default
        if path is None and keys:
            raise UsageError(f"--{name} is missing: --{name}.{keys[0]} changes a value in it")
    if not isinstance(path, str):
        return None
    config = _load(values[name].parser, path)
    for key in keys:
        # A boolean may be written --noconfig.key; absl sees to it.
        if not _has(config, key):
            known = list(_keys(config))
            raise UsageError(f"unknown config key {key}{_nearest(key, known)}")
    return config


def _quote_texts(name: str, argv: Sequence[str], config: ConfigDict) -> list[str]:
    """Quotes plain text given for a tuple of texts (data.input).

    Without quotes, ml_collections takes words and commas for the tuple's own syntax
    and refuses a path with a blank in it.
    """
    quoted = list(argv)
    for place, flag, value in _flags_in(argv):
        key = flag.removeprefix(f"{name}.")
        if key == flag or not value or value[0] in "'\"([" or not _has(config, key):
            continue
        default = config_path.get_value(key, config)
        if isinstance(default, tuple) and all(isinstance(entry, str) for entry in default):
            quoted[place] = argv[place].removesuffix(value) + repr(value)
    return quoted


def _flags_in(argv: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """Argv's flags, in the forms --a=b and --a b: where the value is, name and value."""
    for i, argument in enumerate(argv[1:], 1):
        if argument == "--":
            return
        if argument.startswith("-"):
            name, equals, value = argument.lstrip("-").partition("=")
            if equals:
                yield i, name, value
            else:
                yield i + 1, name, argv[i + 1] if i + 1 < len(argv) else None


def _load(parser: flags.ArgumentParser, path: str) -> Any:
    file = path.partition(":")[0]
    if not os.path.isfile(file):
        raise UserError(f"there is no config file {file!r}")
    try:
        config = parser.parse(path)
    except UserError:
        raise
    except Exception as e:
        # The parser hides the location of some errors behind one of its own.
        cause = e.__context__ if isinstance(e.__context__, type(e)) else e
        raise UserError(f"{_where(cause, file)}: {type(cause).__name__}: {cause}") from e
    if isinstance(config, ConfigDict):
        return config
    if config is None:
        raise UserError(f"{file}: get_config() returns nothing")
    try:
        # A config that failed to load raises at any access.
        getattr(config, "lock", None)
    except OSError as e:
        raise UserError(f"{file}: {e.__cause__ or e}") from e
    raise UserError(f"{file}: get_config() must return a ConfigDict, not {type(config).__name__}")


def _where(error: BaseException, file: str) -> str:
    """FILE:LINE of the config file's own line that led to the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if os.path.abspath(f.filename) == os.path.abspath(file)]
    return f"{file}:{lines[-1]}" if lines else file


def _has(config: ConfigDict, key: str) -> bool:
    try:
        config_path.get_value(key, config)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):
        return False
    return True


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Full paths of all values and sections: "train.stages[0].fraction"."""
    items: Sequence[tuple[str, Any]] = ()
    if isinstance(config, ConfigDict):
        items = [(f"{prefix}.{k}" if prefix else k, v) for k, v in config.items()]
    elif isinstance(config, list | tuple):
        items = [(f"{prefix}[{i}]", v) for i, v in enumerate(config)]
    for path, value in items:
        yield path
        yield from _keys(value, path)


def _nearest(name: str, known: Sequence[str], prefix: str = "") -> str:
    matches = difflib.get_close_matches(name, known, 1)
    # The right key in the wrong section, or in none.
    same_end = [k for k in known if k.rpartition(".")[2] == name.rpartition(".")[2]]
    best = next(iter([*matches, *same_end]), None)
    return f"; did you mean {prefix}{best}?" if best else ""


def _one_sentence(message: str) -> str:
    if "must have a value other than None" in message:
        name = message.partition("=")[0].removeprefix("flag --")
        return f"--{name} is missing"
    return message.strip().splitlines()[0]


def _exit(message: str, status: int) -> NoReturn:
    if message:
        print(message, file=sys.stderr, flush=True)
    sys.exit(status)
