"""Whether this process is one of several, and a parent that watches over it if so.

The runtime that holds the processes of a run together ends a process with abort() and
a page of its own words when another one dies, or cannot be found: no Python code of
that process is asked. So each process of several is watched by a small parent, which
is the command that the user started: it passes signals and messages on, and says in
one sentence what happened. A run of one process has no parent and no coordinator.
"""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from typing import NoReturn

# At the start, processes wait so long for the last of them: machines of one job come
# up minutes apart.
JOIN_SECONDS = 300
# A process that is not heard of for so long is lost, and the others end. A killed one
# is mostly noticed within a second (its connections close); this is for machines and
# networks that vanish without a word. Heartbeats need no Python, so no long computation
# delays them; a virtual machine that is moved may stand still for half a minute.
LOST_SECONDS = 60

# The status of a process that stops because of another: EX_TEMPFAIL of sysexits.h. Who
# started it may start all of them again, where 1 or 2 is a mistake that would come again.
LOST_STATUS = 75
LOST = (
    "another process of this run was lost (it was killed, or its machine or network failed), so "
    "this one stops too; the same command, started again for all of them, continues from the last "
    "checkpoint"
)

# Marks the watched process: holds its parent's process id.
_MARK = "BERT_JAX_WATCHED_BY"
# Begins a line on stderr with which a watched process tells its parent its name.
_NAME = "\x1e"
_ABORT = "Terminating process because the JAX distributed service detected fatal errors"
# The runtime's own words about what the one sentence says, and its greetings.
_NOISE = re.compile(
    r"[IWE]\d{4} [\d:.]+ +\d+ (coordination_service\w*|add_port)\.cc:\d+\]"
    r"|\[Gloo\] Rank \d+ is connected"
)
_MORE_NOISE = re.compile(
    r"Additional GRPC error information|:UNKNOWN:|:?\{|RPC: /|The tasks have crashed|\d*$"
)
_SLURM = "SLURM_JOB_ID SLURM_STEP_NODELIST SLURM_NTASKS SLURM_PROCID SLURM_LOCALID".split()


@dataclasses.dataclass(frozen=True)
class ByHand:
    """Where the processes meet, HOST:PORT of the first; how many they are; which one this is."""

    coordinator: str
    num_processes: int
    process_id: int


def is_one_of_several() -> bool:
    """Whether the environment says so, as `jax.distributed.initialize` reads it.

    Slurm and Google Kubernetes Engine say it in variables. On a Cloud TPU VM only its
    metadata server knows, and jax asks it; True there. Without TPU chips nothing is asked.
    """
    if all(name in os.environ for name in _SLURM):
        return int(os.environ["SLURM_NTASKS"]) > 1
    import jax  # Only here: with flags, or under Slurm, the parent needs none of it.

    # jax puts "tpu" there when it finds chips, and libtpu to drive them.
    if "tpu" not in (jax.config.jax_platforms or ""):
        return False
    names = os.environ.get("TPU_PROCESS_ADDRESSES") or os.environ.get("TPU_WORKER_HOSTNAMES")
    if names:
        slices = int(os.environ.get("MEGASCALE_NUM_SLICES") or 1)
        return len(names.split(",")) * slices > 1
    return "TPU_SKIP_MDS_QUERY" not in os.environ


def watch(by_hand: ByHand | None) -> None:
    """Returns in the watched process; in the one the user started, starts that and waits.

    Raises:
      SystemExit: in the parent, always, with the status of the watched process.
    """
    if os.environ.get(_MARK) == str(os.getppid()):
        del os.environ[_MARK]
        threading.Thread(target=_end_with_parent, daemon=True).start()
        return
    place = by_hand.coordinator if by_hand else "the place that the environment names"
    _watch(place)


def tell_name(name: str) -> None:
    """Tells the parent that this process has joined the others, and what it is called."""
    print(f"{_NAME}{name}", file=sys.stderr, flush=True)


def _watch(place: str) -> NoReturn:
    child = subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=os.environ | {_MARK: str(os.getpid())},
        # Nothing is ever written: it closes when this process ends, however it does.
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C reaches a whole group: it shall come once, from here.
        process_group=0,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    relay = _Relay(place)
    reader = threading.Thread(target=relay.run, args=(child.stderr,), daemon=True)
    reader.start()
    status = child.wait()
    # Workers of the child may hold the pipe open a little longer.
    reader.join(timeout=1)
    if relay.aborted:
        if not relay.told:
            _say(f"error: {relay.name}{relay.reason()}")
        sys.exit(1 if relay.refused else LOST_STATUS)
    if status >= 0:
        sys.exit(status)
    ended_by = signal.Signals(-status)
    if ended_by in (signal.SIGTERM, signal.SIGINT):
        # As if there had been no parent between.
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    hint = " (the machine's memory may have run out)" if ended_by == signal.SIGKILL else ""
    _say(f"error: {relay.name}this process was ended by {ended_by.name}{hint}")
    sys.exit(128 + ended_by)


class _Relay:
    """Passes a watched process's stderr on, but for the runtime's words on lost processes."""

    def __init__(self, place: str):
        self.name = ""
        self.aborted = ""
        self.told = False
        self._in_noise = False
        self._place = place

    def run(self, stream) -> None:
        for line in iter(stream.readline, b""):
            self._pass(line.decode(errors="replace"))

    def _pass(self, line: str) -> None:
        if line.startswith(_NAME):
            self.name = f"{line[1:].strip()}: "
            return
        self.told |= LOST in line
        if _ABORT in line:
            self.aborted = line
        elif self.aborted and not line.startswith("error: "):
            self.aborted += line
        else:
            more = self._in_noise and _MORE_NOISE.match(line)
            self._in_noise = bool(more or _NOISE.match(line))
            if self._in_noise:
                return
            with contextlib.suppress(OSError):  # Whoever read it has gone.
                sys.stderr.write(line)
                sys.stderr.flush()

    @property
    def refused(self) -> bool:
        """Whether this process was ended for a mistake in its flags."""
        return "RegisterTask" in self.aborted and "ALREADY_EXISTS" in self.aborted

    def reason(self) -> str:
        """Why the runtime ended the process, in a sentence."""
        if "RegisterTask" not in self.aborted:
            return LOST
        if self.refused:
            return "another process joined this run with the same --process_id; each needs its own"
        return (
            f"the processes of this run did not all meet at {self._place} within {JOIN_SECONDS} "
            "seconds: process 0 must run there, every machine must reach it, and as many processes "
            "must start as were announced"
        )


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
