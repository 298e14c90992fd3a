"""Runs the stages of a preparation by Apache Beam, one pipeline for each stage."""

from collections.abc import Callable, Sequence

from bert_jax.base.errors import UserError
from bert_jax.store.engines import Cluster


def beam_runner(name: str, options: Sequence[str]) -> Cluster:
    """Returns a runner of Apache Beam, such as DataflowRunner.

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
