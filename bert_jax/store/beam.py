"""Runs the stages of a preparation by Apache Beam, one pipeline for each stage.

The pipelines hold the numbers of the parts, never text or tokens.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.store.engines import TITLES, missing, shared_directory
from bert_jax.store.plan import Directory, Plan, computed_once, raise_error
from bert_jax.store.stages import run_part


class BeamRunner:
    """A runner of Apache Beam, such as DataflowRunner. Its workers must see the directory.

    Args:
      name: The name of the runner.
      options: The flags of the runner.

    Raises:
      UserError: Apache Beam is not installed.
    """

    def __init__(self, name: str, options: Sequence[str]):
        try:
            import apache_beam  # noqa: F401
        except ImportError:
            raise UserError("--runner needs Apache Beam: pip install -e '.[beam]'") from None
        self._name, self._options = name, [f"--runner={name}", *options]

    def opened(self, output: Directory, plan: Plan) -> AbstractContextManager[None]:
        return shared_directory(output, plan)

    def once(self, output: Directory, name: str, compute: Callable[[], dict]) -> dict[str, Any]:
        return computed_once(output, name, compute)

    def map(self, output: Directory, plan: Plan, stage: str, numbers: Sequence[int]) -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        if numbers := missing(output, stage, numbers):
            say(f"{TITLES[stage]}: {len(numbers)} of {len(plan.parts)} parts")
            options = PipelineOptions(self._options, save_main_session=False)
            try:
                with beam.Pipeline(options=options) as pipeline:
                    # Without Reshuffle, one worker would do all parts.
                    _ = (
                        pipeline
                        | beam.Create(numbers)
                        | beam.Reshuffle()
                        | beam.Map(functools.partial(run_part, str(output), stage))
                    )
            # Each runner has exceptions of its own.
            except Exception as error:
                raise UserError(
                    f"{self._name} of Apache Beam failed ({files.first_line(error)}): start the "
                    "same command again, which continues"
                ) from error
        raise_error(output)
        if left := missing(output, stage, numbers):
            raise UserError(
                f"{self._name} of Apache Beam ended, but {output} lacks part {left[0]}: its "
                "workers must see this directory"
            )
