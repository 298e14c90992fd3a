"""Chooses the documents that are set aside for evaluation."""

from fractions import Fraction

from bert_jax.data.vocabulary_sample import stable_hash


class HeldOut:
    """An evenly spread share of the documents, chosen by their index alone.

    Consecutive documents form strata of 1 / fraction, or of the two integers next to it, with the
    right mean. A hash picks one document of each stratum.

    Args:
      fraction: From 0 to 0.5. It stands for the decimal number that its repr shows.
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
