"""What a model predicts about a text: masked words, scores, replaced tokens and attention."""

import base64
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference.forward import Inputs
from bert_jax.reports.html import render
from bert_jax.tokenizers import TokenRow

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# The number of rows that are predicted together. Each mask needs an array of the vocabulary's size.
_CHUNK_ROWS = 64


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


def guess_masks(bert: "Bert", rows: Sequence[TokenRow], top_k: int) -> list[dict[int, list[Guess]]]:
    """Predicts the most likely tokens at each masked position of each row.

    Raises:
      UserError: `top_k` is out of range.
    """
    vocab_size, tokenizer = bert.config.vocab_size, bert.tokenizer
    if not 1 <= top_k <= vocab_size:
        raise UserError(
            f"top_k is {top_k}; it must be from 1 to the {vocab_size:,} tokens of the vocabulary"
        )

    def masks(ids_L: np.ndarray) -> np.ndarray:
        return np.flatnonzero(ids_L == tokenizer.mask_id)

    def best(log_probs_W: np.ndarray) -> list[Guess]:
        log_probs_V = log_probs_W[:vocab_size]
        ranked = np.argsort(-log_probs_V, kind="stable")[:top_k]
        return [Guess(tokenizer.piece_text(i), math.exp(log_probs_V[i])) for i in ranked]

    guesses = []
    for first in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[first : first + _CHUNK_ROWS]
        positions = [masks(row.input_ids_L).tolist() for row in chunk]
        num_masks = max(map(len, positions))
        if not num_masks:
            guesses += [{} for _ in chunk]
            continue
        # Padding the number of masks keeps the number of compiled shapes small.
        padded = 1 << (num_masks - 1).bit_length()

        def program(inputs: Inputs, padded: int = padded) -> jax.Array:
            positions_BxM = np.zeros((len(inputs.input_ids_BxL), padded), np.int32)
            for positions_M, ids_L in zip(positions_BxM, inputs.input_ids_BxL, strict=True):
                positions_M[: len(masks(ids_L))] = masks(ids_L)
            return bert.token_log_probs(inputs, positions_BxM)

        for at, log_probs_MxW in zip(positions, bert.run(chunk, program), strict=True):
            guesses.append(dict(zip(at, map(best, log_probs_MxW), strict=False)))
    return guesses


def score_tokens(bert: "Bert", row: TokenRow) -> Score:
    """Scores each token of a row of one text, given all others."""
    tokenizer = bert.tokenizer
    first, after = len(tokenizer.template.before), len(tokenizer.template.after)
    ids = row.input_ids_L[first : len(row.input_ids_L) - after].tolist()
    masked = [row._replace(input_ids_L=row.input_ids_L.copy()) for _ in ids]
    for i, copy in enumerate(masked):
        copy.input_ids_L[first + i] = tokenizer.mask_id

    def program(inputs: Inputs) -> jax.Array:
        positions_B = np.argmax(inputs.input_ids_BxL == tokenizer.mask_id, axis=1)
        return bert.token_log_probs(inputs, positions_B[:, None].astype(np.int32))

    log_probs_1xW = bert.run(masked, program)
    log_probs = [float(x[0, i]) for i, x in zip(ids, log_probs_1xW, strict=True)]
    return Score(math.fsum(log_probs), [tokenizer.piece_text(i) for i in ids], log_probs)
