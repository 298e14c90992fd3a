"""Weights and tokenizers of other programs, read and written: what `bert_jax.convert` does."""
