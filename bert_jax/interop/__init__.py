"""Reads and writes the weights and tokenizers of other programs."""
