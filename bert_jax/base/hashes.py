"""Hashes that are the same on every machine."""

import hashlib

import numpy as np


def stable_hash(*parts: object) -> int:
    """Returns a 64-bit hash of the texts of some values."""
    text = ":".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mixed(bits: np.ndarray) -> np.ndarray:
    """Returns uint64 in which every bit depends on every bit of the input (splitmix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> np.uint64(shift)) * np.uint64(factor)
    return bits ^ bits >> np.uint64(31)
