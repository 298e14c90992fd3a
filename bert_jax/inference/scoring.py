"""How likely a text is, and that one sentence followed another."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import forward
from bert_jax.inference.filling import token_log_probs
from bert_jax.inference.forward import Inputs
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import TokenRow
from bert_jax.tokenizers.given_texts import SecondTexts, Texts, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert


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


def score(bert: "Bert", text: str | Sequence[str]) -> Score | list[Score]:
    """Scores each token of a text given all others; a list of texts gives a list of scores."""
    return one_or_all(text, [_score_row(bert, row) for row in bert.rows(as_texts(text))])


def _score_row(bert: "Bert", row: TokenRow) -> Score:
    """Masks each token of a row of one text in turn."""
    tokenizer = bert.tokenizer
    first, after = len(tokenizer.template.before), len(tokenizer.template.after)
    ids = row.input_ids_L[first : len(row.input_ids_L) - after].tolist()
    masked = [row._replace(input_ids_L=row.input_ids_L.copy()) for _ in ids]
    for i, copy in enumerate(masked):
        copy.input_ids_L[first + i] = tokenizer.mask_id

    def program(inputs: Inputs) -> jax.Array:
        positions_B = np.argmax(inputs.input_ids_BxL == tokenizer.mask_id, axis=1)
        return token_log_probs(bert, inputs, positions_B[:, None].astype(np.int32))

    log_probs_1xW = bert.run(masked, program)
    log_probs = [float(x[0, i]) for i, x in zip(ids, log_probs_1xW, strict=True)]
    return Score(math.fsum(log_probs), [tokenizer.piece_text(i) for i in ids], log_probs)


def next_sentence(bert: "Bert", text: Texts, text_b: SecondTexts = None) -> float | list[float]:
    """Computes the probability that `text_b` followed `text` in one document.

    Args:
      text: A sentence; or a list of sentences or of pairs, for a list of probabilities.
      text_b: The other sentence, or a list of them; None if `text` is a list of pairs.
    """
    pairs = as_texts(text, text_b)
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise UserError("next_sentence takes two sentences, or a list of pairs")
    (term,) = make_terms(["next_sentence"])
    program = partial(forward.log_probs, bert.config, bert.params, term=term)
    log_probs = bert.run(bert.rows(pairs), program)
    return one_or_all(text, [float(np.exp(log_probs_2[0])) for log_probs_2 in log_probs])
