"""Reads documents: files, tables and TFDS, their formats, and their division into sentences.

`sources.py` finds the files of `data.input` and cuts them into parts, and `corpus.py` yields the
documents of a part with the reader of its format.
"""
