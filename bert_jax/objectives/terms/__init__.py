"""The pre-training terms, one file each, and their names."""

from collections.abc import Sequence

from bert_jax.objectives.term import Term
from bert_jax.parts import load_part

TERMS = {
    "masked_lm": "bert_jax.objectives.terms.masked_lm:MaskedLM",
    "next_sentence": "bert_jax.objectives.terms.next_sentence:NextSentence",
    "next_token": "bert_jax.objectives.terms.next_token:NextToken",
}
BERT_TERMS = ("masked_lm", "next_sentence")


def make_terms(names: Sequence[str] = BERT_TERMS) -> tuple[Term, ...]:
    """Returns the terms that `config.objective.terms` names.

    Raises:
      UserError: There is no such term.
    """
    return tuple(load_part(name, TERMS, "config.objective.terms")() for name in names)
