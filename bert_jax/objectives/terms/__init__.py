"""The pre-training terms by the names that a config uses."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.base.parts import load_part
from bert_jax.objectives.term import Term

TERMS = {
    "masked_lm": "bert_jax.objectives.terms.masked_lm:MaskedLM",
    "next_sentence": "bert_jax.objectives.terms.next_sentence:NextSentence",
    "next_token": "bert_jax.objectives.terms.next_token:NextToken",
    "diffusion": "bert_jax.objectives.terms.diffusion:MaskedDiffusion",
    "soft_targets": "bert_jax.objectives.terms.distillation:SoftTargets",
    "hidden_cosine": "bert_jax.objectives.terms.distillation:HiddenCosine",
    "generator": "bert_jax.objectives.terms.electra:Generator",
    "replaced_token": "bert_jax.objectives.terms.electra:ReplacedToken",
    "sentence_order": "bert_jax.objectives.terms.next_sentence:SentenceOrder",
    "three_way_order": "bert_jax.objectives.terms.next_sentence:ThreeWayOrder",
    "span_boundary": "bert_jax.objectives.terms.masked_lm:SpanBoundary",
    "retromae": "bert_jax.objectives.terms.retromae:RetroMAE",
    "denoising": "bert_jax.objectives.terms.denoising:OriginalText",
}
BERT_TERMS = ("masked_lm", "next_sentence")


def make_terms(
    names: Sequence[str] = BERT_TERMS, options: Mapping[str, Any] | None = None
) -> tuple[Term, ...]:
    """Makes the terms that `config.objective.terms` names.

    Args:
      names: Keys of TERMS, or "MODULE:NAME".
      options: Values for the fields of the terms, such as the keys of `config.objective`. Fields
        without a value keep their defaults. No option may affect the parameters of a head.
    """
    terms = []
    for name in names:
        term = load_part(name, TERMS, "config.objective.terms")
        fields = {field.name for field in dataclasses.fields(term)}
        terms.append(term(**{key: x for key, x in (options or {}).items() if key in fields}))
    return tuple(terms)
