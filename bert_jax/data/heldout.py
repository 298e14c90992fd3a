"""Which documents are set aside for evaluation."""

from fractions import Fraction

from bert_jax.data.vocabulary_sample import stable_hash


class HeldOut:
    """Chooses a share of the documents, evenly spread, by their index alone.

    The documents are cut into strata of 1 / fraction in a row (where that is no whole
    number, of the two next to it, so that their mean is right), and a hash picks one of
    each stratum.

    Args:
      fraction: From 0 to 0.5. It is taken as the decimal number that it is written as.
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
        """stratum / share, rounded up."""
        return -(-stratum * self._share.denominator // self._share.numerator)
