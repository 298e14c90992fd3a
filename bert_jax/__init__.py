"""Pre-train BERT on your own text, in JAX, on TPU, GPU or CPU.

A value, a text or a directory that cannot be used raises `bert_jax.base.errors.UserError`.
"""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml_collections import ConfigDict

    from bert_jax.inference.bert import Bert
    from bert_jax.inference.finetuned import FineTuned

__version__ = "0.2.0"


# The functions import what they need when they are called, because `import bert_jax` alone must not
# load JAX.


def load_config(name: str) -> "ConfigDict":
    """Returns the config of a file, ready to be changed: `config.train.num_steps = 1000`.

    Args:
      name: A file such as "my_config.py", or a config of bert_jax such as "tiny", "roberta:tiny" or
        "finetune/glue:mrpc". The part after the colon is the argument of `get_config`.
    """
    from bert_jax.config.command_line import load_config_file

    return load_config_file(name)


def train(config: "ConfigDict | str", workdir: str) -> dict[str, Any] | None:
    """Pre-trains a model, as `python -m bert_jax.main` does; continues an interrupted run.

    On a CPU, it sets the allocator of this process; see `bert_jax/base/cpu_allocator.py`.

    Args:
      config: A pre-training config, such as `load_config("tiny")`, or the name of one.

    Returns:
      The contents of results.json; None if a signal stopped the run before its end.
    """
    from bert_jax.base import cpu_allocator, parts
    from bert_jax.commands.pretrain import pretrain
    from bert_jax.config import validate

    config = load_config(config) if isinstance(config, str) else config
    parts.trust(config)
    validate(config, is_given=True)
    cpu_allocator.prepare_process()
    with _programs_of_a_run():
        return pretrain(config, workdir)


def finetune(config: "ConfigDict | str", workdir: str) -> dict[str, Any] | None:
    """Fine-tunes a model on a task, as `python -m bert_jax.finetune` does.

    On a CPU, it sets the allocator of this process; see `bert_jax/base/cpu_allocator.py`.

    Args:
      config: A fine-tuning config, such as `load_config("finetune/glue:mrpc")` with values for
        `init_from` and `data.input`, or the path of a file with them.
      workdir: The work directory. An interrupted run in it continues.

    Returns:
      The contents of results.json; None if a signal stopped the run before its end.
    """
    from bert_jax.base import cpu_allocator, parts
    from bert_jax.commands.finetune import finetune

    config = load_config(config) if isinstance(config, str) else config
    parts.trust(config)
    cpu_allocator.prepare_process()
    with _programs_of_a_run():
        return finetune(config, workdir)


@contextlib.contextmanager
def _programs_of_a_run() -> Iterator[None]:
    """Lets the compiled programs and the arrays of a run go at its end.

    JAX would keep them until the process ends, which may make many runs.
    """
    import jax

    try:
        yield
    finally:
        jax.clear_caches()
        gc.collect()


def load(path: str, step: int | None = None, parts: Sequence[str] = ()) -> "Bert | FineTuned":
    """Loads a BERT for inference: `bert_jax.load(PATH).fill_mask("Paris is [MASK].")`.

    Args:
      path: A work directory of bert_jax, a Hugging Face directory, or a Google checkpoint.
      step: The step of the checkpoint in a work directory; by default the newest or, of a
        fine-tuning run, the best.
      parts: The names (MODULE:NAME) of parts from outside bert_jax that the model may use. Their
        code is imported.

    Returns:
      A `bert_jax.inference.bert.Bert`, or a `bert_jax.inference.finetuned.FineTuned` for a model
      with a task head, such as the best checkpoint of a fine-tuning run.
    """
    from bert_jax.base.parts import trust
    from bert_jax.inference.finetuned import load_bert

    trust(parts)
    return load_bert(path, step)
