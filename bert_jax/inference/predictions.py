"""What a model predicts about a text: masked words, scores, replaced tokens and attention."""

import base64
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.reports.html import render


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
      num_first: The number of tokens in segment A.
      probabilities_NxAxLxL: float32 for N layers and A heads; each row adds up to 1.
      guesses: The guesses for each masked position; empty without a mask or a masked-LM head.
    """

    tokens: list[str]
    num_first: int
    probabilities_NxAxLxL: np.ndarray
    guesses: dict[int, list[Guess]]

    def page(self) -> str:
        """Writes an HTML page that shows the attention, in one file without network access.

        Probabilities are stored as bfloat16, with a relative error of 1/512, because small
        probabilities matter when [CLS] and [SEP] are hidden. 12 layers with 12 heads on 128 tokens
        take 6 MB.
        """
        layers, heads = self.probabilities_NxAxLxL.shape[:2]
        halves = self.probabilities_NxAxLxL.astype(jnp.bfloat16).view(np.uint16).astype("<u2")
        data = {
            "tokens": self.tokens,
            "first": self.num_first,
            "layers": layers,
            "heads": heads,
            "guesses": [
                [position, [[guess.token, round(guess.probability, 4)] for guess in guesses]]
                for position, guesses in self.guesses.items()
            ],
            "attention": base64.b64encode(halves.tobytes()).decode(),
        }
        return render("bert_jax.inference", "attention_page.html", data=data)
