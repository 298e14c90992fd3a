"""Reads documents: files, tables and TFDS, their formats, and their division into sentences."""
