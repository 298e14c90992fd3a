"""Chooses the documents that are set aside for evaluation."""

from fractions import Fraction

from bert_jax.data.vocabulary_sample import stable_hash


class HeldOut:
    """An evenly spread share of the documents, chosen by their index alone.

    Consecutive documents form strata of 1 / fraction documents on average; each size is one of
    the two nearest integers. A hash picks one document of each stratum.

    Args:
      fraction: From 0 to 0.5. Its repr is taken as an exact decimal number.
    """

    def __init__(self, fraction: float):
        self.fraction = fraction
        self._share = Fraction(str(float(fraction)))

    def __contains__(self, index: int) -> bool:
        share = self._share
        if not share:
            return False
        stratum = index * share.numerator // share.denominator
        start, end = self._start(stratum), self._start(stratum + 1)
        return index - start == stable_hash("heldout", stratum) % (end - start)

    def _start(self, stratum: int) -> int:
        """Returns stratum / share, rounded up."""
        return -(-stratum * self._share.denominator // self._share.numerator)
