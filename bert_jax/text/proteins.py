"""Synthetic proteins, on which a small ESM-2 can show within minutes that it learns.

They are no real proteins. Letters are drawn with roughly the frequencies of amino acids in
UniProtKB/Swiss-Prot, and a few fixed words, which stand for the motifs of protein families, are put
between them: half of the letters belong to such a word, and can be predicted from its others.
"""

import functools

import numpy as np

# The name of the corpus in `data.input`.
NAME = "synthetic_proteins"
# Percent. They differ by at most 0.03 from the compositions that release statistics of UniProtKB/
# Swiss-Prot state, which change a little with each release.
_FREQUENCIES = {
    **{"A": 8.25, "R": 5.52, "N": 4.06, "D": 5.46, "C": 1.38, "Q": 3.93, "E": 6.71, "G": 7.07},
    **{"H": 2.27, "I": 5.91, "L": 9.64, "K": 5.79, "M": 2.41, "F": 3.86, "P": 4.74, "S": 6.65},
    **{"T": 5.36, "W": 1.10, "Y": 2.92, "V": 6.85},
}
_NUM_PROTEINS, _NUM_MOTIFS, _MOTIF_LENGTH = 6000, 32, 12
# A protein has as many motifs, each after as many random letters on average.
_MIN_MOTIFS, _MAX_MOTIFS, _MEAN_GAP = 2, 8, 12


@functools.cache
def proteins() -> tuple[str, ...]:
    """Returns the sequences, which are always the same."""
    # No later version of numpy will change this stream (NEP 19).
    rng = np.random.RandomState(0)
    letters, shares = "".join(_FREQUENCIES), np.array([*_FREQUENCIES.values()])

    def draw(length: int) -> str:
        return "".join(letters[i] for i in rng.choice(20, length, p=shares / shares.sum()))

    motifs = [draw(_MOTIF_LENGTH) for _ in range(_NUM_MOTIFS)]
    found = []
    for _ in range(_NUM_PROTEINS):
        chosen = rng.randint(_NUM_MOTIFS, size=rng.randint(_MIN_MOTIFS, _MAX_MOTIFS + 1))
        parts = [draw(rng.poisson(_MEAN_GAP)) + motifs[i] for i in chosen]
        found.append("M" + "".join(parts) + draw(rng.poisson(_MEAN_GAP)))
    return tuple(found)
