"""Runs the stages of a preparation by processes of this machine, Apache Beam or another cluster.

An engine maps `run_part` over the numbers of the parts that lack the result of a stage. All state
is in the directory of the store: an engine may be killed at any time, and another may continue.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.processes import worker_processes
from bert_jax.base.progress import Progress, say
from bert_jax.store import manifest
from bert_jax.store.plan import Directory, Plan, is_written, raise_error, result_name, written
from bert_jax.store.stages import TITLES, run_part
from bert_jax.store.tokenization import KILLED


class LocalProcesses:
    """Processes of this machine, which replace an unfinished store with another plan."""

    may_replace = True

    def __init__(self, num_processes: int):
        self._num_processes = num_processes

    def map(self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]) -> None:
        if not (numbers := missing(output, stage, numbers)):
            return
        workers = min(len(numbers), self._num_processes)
        try:
            if workers == 1:
                # One part alone is tokenized by all processes.
                run_here(output, plan, stage, numbers, self._num_processes)
            else:
                self._run(output, plan, stage, numbers, workers)
        except BrokenProcessPool:
            raise UserError(KILLED) from None
        raise_error(output)

    def _run(
        self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int], workers: int
    ) -> None:
        total = sum(map(plan.megabytes, numbers))
        inside = self._num_processes // workers
        running: dict[Future, int] = {}
        waiting = list(reversed(numbers))
        with Progress(TITLES[stage], total, "MB") as bar, worker_processes(workers) as pool:
            while running or waiting:
                while waiting and len(running) < workers:
                    number = waiting.pop()
                    future = pool.submit(run_part, str(output), stage, number, inside)
                    running[future] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    number = running.pop(future)
                    bar.advance(plan.megabytes(number))
                    if not is_written(output, result_name(stage, number)):
                        # The parts before it still end; one of them may have an error too.
                        waiting.clear()


class Cluster:
    """An engine of a cluster, all of whose workers see the directory of the store.

    Only the numbers of parts travel through it, never text or tokens. An unfinished store with
    another plan is refused: workers may still be writing to it.

    Args:
      run: Calls a function with each of some numbers: anywhere, in any order, at least once.
      name: The name of the engine in messages.
    """

    may_replace = False

    def __init__(
        self,
        run: Callable[[Callable[[int], None], Sequence[int]], None],
        name: str = "the engine",
    ):
        self._run, self._name = run, name

    def map(self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]) -> None:
        if numbers := missing(output, stage, numbers):
            say(f"{TITLES[stage]}: {len(numbers)} of {len(plan.parts)} parts")
            try:
                self._run(functools.partial(run_part, str(output), stage), numbers)
            # Each engine has exceptions of its own.
            except Exception as error:
                raise UserError(
                    f"{self._name} failed ({files.first_line(error)}): start the same command "
                    "again, which continues"
                ) from error
        raise_error(output)
        if left := missing(output, stage, numbers):
            raise UserError(
                f"the workers of the cluster have ended, but {output} lacks part {left[0]}: all of "
                "them must see this directory"
            )


Engine = LocalProcesses | Cluster


def beam_runner(name: str, options: Sequence[str]) -> Cluster:
    """Returns a runner of Apache Beam, such as DataflowRunner, with one pipeline for each stage.

    Args:
      name: The name of the runner.
      options: The flags of the runner.

    Raises:
      UserError: Apache Beam is not installed.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise UserError("--runner needs Apache Beam: pip install -e '.[beam]'") from None

    def run(function: Callable[[int], None], numbers: Sequence[int]) -> None:
        with beam.Pipeline(options=PipelineOptions([f"--runner={name}", *options])) as pipeline:
            # Without Reshuffle, one worker would do all parts.
            _ = pipeline | beam.Create(numbers) | beam.Reshuffle() | beam.Map(function)

    return Cluster(run, f"{name} of Apache Beam")


def missing(output: Directory, stage: str, numbers: Sequence[int]) -> list[int]:
    """Returns the numbers of the parts that lack the result of a stage."""
    names = written(output)
    return [number for number in numbers if result_name(stage, number) not in names]


def run_here(
    output: Directory, plan: Plan, stage: str, numbers: Sequence[int], num_processes: int
) -> None:
    """Runs a stage for some parts, one after another, until one has an error.

    Args:
      num_processes: The number of processes that tokenize.
    """
    corpus = manifest.open_corpus(ConfigDict(plan.data), plan.sources)
    in_bytes = corpus.unit == "MB"
    total = sum(map(plan.megabytes, numbers)) if in_bytes else corpus.fetch()
    least = 0.1 if in_bytes else 100
    before = shown = done = 0.0

    def show(now: float, least: float = least) -> None:
        nonlocal shown, done
        done = before + now
        if done - shown >= least:
            bar.advance(done - shown, None if total else f"{done:,.0f} documents")
            shown = done

    with Progress(TITLES[stage], total, corpus.unit) as bar:
        for number in numbers:
            run_part(output, stage, number, num_processes, show)
            if not is_written(output, result_name(stage, number)):
                return
            show(done - before, 0)
            before = done
