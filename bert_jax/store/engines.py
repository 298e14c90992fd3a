"""Runs the stages of a preparation by processes of this machine, Apache Beam or another cluster.

An engine maps `run_part` over the numbers of some parts. All state is in the directory of the
store: an engine may be killed at any time, and another may continue.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed

from bert_jax.base.errors import UserError
from bert_jax.base.processes import worker_processes
from bert_jax.base.progress import Progress, say
from bert_jax.store.part_stages import TITLES, run_part
from bert_jax.store.plan import Directory, Plan, is_written, raise_error, result_name, written


class LocalProcesses:
    """Processes of this machine, which replace an unfinished store with another plan."""

    may_replace = True

    def __init__(self, num_processes: int):
        self._num_processes = num_processes

    def run(self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]) -> None:
        workers = min(len(numbers), self._num_processes)
        # The size of a data set is not known.
        has_size = all("bytes" in source for source in plan.sources)
        total = sum(map(plan.megabytes, numbers)) if has_size else None
        with Progress(TITLES[stage], total, "MB") as bar:
            if workers == 1:
                for number in numbers:
                    # One part alone is tokenized by all processes.
                    run_part(str(output), stage, number, self._num_processes, bar.advance)
                    if not is_written(output, result_name(stage, number)):
                        return
                return
            inside = self._num_processes // workers
            with worker_processes(workers) as pool:
                running = {
                    pool.submit(run_part, str(output), stage, number, inside): number
                    for number in numbers
                }
                for future in as_completed(running):
                    future.result()
                    bar.advance(plan.megabytes(running[future]))
                    if not is_written(output, result_name(stage, running[future])):
                        # The parts before it still end; one of them may have an error too.
                        return


class Cluster:
    """An engine of a cluster, all of whose workers see the directory of the store.

    Only the numbers of parts travel through it, never text or tokens. An unfinished store with
    another plan is refused: workers may still be writing to it.

    Args:
      run: Calls a function with each of some numbers: anywhere, in any order, at least once.
    """

    may_replace = False

    def __init__(self, run: Callable[[Callable[[int], None], Sequence[int]], None]):
        self._run = run

    def run(self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]) -> None:
        say(f"{TITLES[stage]}: {len(numbers)} of {len(plan.parts)} parts")
        self._run(functools.partial(run_part, str(output), stage), numbers)


Engine = LocalProcesses | Cluster


def beam_runner(name: str, options: Sequence[str]) -> Cluster:
    """Returns a runner of Apache Beam, such as DataflowRunner, with one pipeline for each stage."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    def run(function: Callable[[int], None], numbers: Sequence[int]) -> None:
        with beam.Pipeline(options=PipelineOptions([f"--runner={name}", *options])) as pipeline:
            # Without Reshuffle, one worker would do all parts.
            _ = pipeline | beam.Create(numbers) | beam.Reshuffle() | beam.Map(function)

    return Cluster(run)


def run_stage(
    engine: Engine, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]
) -> None:
    """Runs a stage for those of some parts that lack its result."""
    if not (numbers := _missing(output, stage, numbers)):
        return
    engine.run(output, plan, stage, numbers)
    raise_error(output)
    if left := _missing(output, stage, numbers):
        raise UserError(
            f"the workers of the cluster have ended, but {output} lacks part {left[0]}: all of "
            "them must see this directory"
        )


def _missing(output: Directory, stage: str, numbers: Sequence[int]) -> list[int]:
    names = written(output)
    return [number for number in numbers if result_name(stage, number) not in names]
