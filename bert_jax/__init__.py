"""Pre-train BERT from your own text, in JAX, on TPU, GPU or CPU."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert
    from bert_jax.inference.finetuned import FineTuned

__version__ = "0.1.0"


def load(path: str, step: int | None = None) -> "Bert | FineTuned":
    """Loads a BERT for inference: `bert_jax.load(PATH).fill_mask("Paris is [MASK].")`.

    Args:
      path: A work directory of bert_jax, a Hugging Face directory, or a Google checkpoint.
      step: The step of the checkpoint in a work directory; by default the newest.

    Returns:
      A `bert_jax.inference.bert.Bert`, or a `bert_jax.inference.finetuned.FineTuned` for a model
      with a task head, such as the best checkpoint of a fine-tuning run.

    Raises:
      bert_jax.errors.UserError: The path is none of these, is damaged, or has no tokenizer.
    """
    # This import loads JAX, which `import bert_jax` alone does not.
    from bert_jax.inference.finetuned import load_bert

    return load_bert(path, step)
