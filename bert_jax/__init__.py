"""Pre-train BERT from your own text, in JAX, on TPU, GPU or CPU."""

__version__ = "0.1.0"


def load(path: str, step: int | None = None):
    """Loads a BERT to be asked: `bert_jax.load(PATH).fill_mask("Paris is [MASK].")`.

    Args:
      path: A work directory of bert_jax, a Hugging Face directory, or a Google checkpoint.
      step: Of a work directory, the checkpoint's step; None: the newest.

    Returns:
      A `bert_jax.inference.bert.Bert`; of a fine-tuning work directory, whose best checkpoint
      is read, or of a Hugging Face directory that holds a task's head, a
      `bert_jax.inference.finetuned.FineTuned`.

    Raises:
      bert_jax.errors.UserError: it is none of these, damaged, or without a tokenizer.
    """
    # Loads JAX, which `import bert_jax` does not.
    from bert_jax.inference.finetuned import load_bert

    return load_bert(path, step)
