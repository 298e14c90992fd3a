"""Runs the stages of a preparation by Apache Beam, one pipeline for each stage."""

from collections.abc import Callable, Sequence

from bert_jax.base import files
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
        try:
            with beam.Pipeline(options=PipelineOptions([f"--runner={name}", *options])) as pipeline:
                # Without Reshuffle, one worker would do all parts.
                _ = pipeline | beam.Create(numbers) | beam.Reshuffle() | beam.Map(function)
        # Each runner has exceptions of its own.
        except Exception as error:
            raise UserError(
                f"{name} of Apache Beam failed ({files.first_line(error)}): start the same command "
                "again, which continues"
            ) from error

    return Cluster(run)
