"""Pre-train BERT from your own text, in JAX, on TPU, GPU or CPU."""

__version__ = "0.1.0"
