"""The predictions that a model makes about a text."""

import math
from typing import NamedTuple

import numpy as np


class Detection(NamedTuple):
    """A token, the probability that it is not the original one, and whether that is above 1/2."""

    token: str
    probability: float
    replaced: bool


class Guess(NamedTuple):
    """A token for a masked position, and its probability."""

    token: str
    probability: float


class Score(NamedTuple):
    """A text's pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659).

    Attributes:
      log_likelihood: The sum of the tokens' log-probabilities, in nats.
      tokens: The text's word pieces.
      log_probs: The log-probability of each token when it alone is masked, in nats.
    """

    log_likelihood: float
    tokens: list[str]
    log_probs: list[float]

    @property
    def perplexity(self) -> float:
        """The pseudo-perplexity of the text, exp of the mean loss of a token."""
        return math.exp(-self.log_likelihood / len(self.tokens))


class Attention(NamedTuple):
    """How a text's tokens attend to each other.

    Attributes:
      tokens: All L tokens, with [CLS] and [SEP].
      num_first: The number of tokens in segment A.
      probabilities_NxAxLxL: float32 for N layers and A heads; each row adds up to 1.
      guesses: The guesses for each masked position; empty without a mask or a masked-LM head.
    """

    tokens: list[str]
    num_first: int
    probabilities_NxAxLxL: np.ndarray
    guesses: dict[int, list[Guess]]
