"""The names of the model families that can be imported and exported."""

from typing import TYPE_CHECKING

from bert_jax.base.parts import load_part

if TYPE_CHECKING:
    from bert_jax.interop.family import Family

DEFAULT = "bert"
FAMILIES = {
    DEFAULT: "bert_jax.interop.families.bert:BERT",
    "spanbert": "bert_jax.interop.families.bert:SPANBERT",
    "herbert": "bert_jax.interop.families.bert:HERBERT",
    "electra": "bert_jax.interop.families.electra:ELECTRA",
    "albert": "bert_jax.interop.families.albert:ALBERT",
    "roberta": "bert_jax.interop.families.roberta:ROBERTA",
    "xlm_roberta": "bert_jax.interop.families.roberta:XLM_ROBERTA",
    "distilbert": "bert_jax.interop.families.distilbert:DISTILBERT",
    "bart": "bert_jax.interop.families.bart:BART",
    "camembert": "bert_jax.interop.families.roberta:CAMEMBERT",
    "modernbert": "bert_jax.interop.families.modernbert:MODERNBERT",
    "nomic_bert": "bert_jax.interop.families.nomic_bert:NOMIC_BERT",
    "gte": "bert_jax.interop.families.gte:GTE",
    "jina_v3": "bert_jax.interop.families.jina_v3:JINA_V3",
    "eurobert": "bert_jax.interop.families.eurobert:EUROBERT",
    "esm": "bert_jax.interop.families.esm:ESM",
    "esmc": "bert_jax.interop.families.esmc:ESMC",
    "flaubert": "bert_jax.interop.families.flaubert:FLAUBERT",
}


def load_family(name: str) -> "Family":
    """Loads a family by its name: a key of FAMILIES, or MODULE:NAME of a `Family`."""
    return load_part(name, FAMILIES, "config.family")


def family_of_type(model_type: str, tokenizer_class: str = "") -> str:
    """Finds the name of the family with this `model_type`; empty if there is none.

    Of several, it is the one with this tokenizer class, or else the first.
    """
    names = [name for name in FAMILIES if model_type in load_family(name).model_types]
    own = (name for name in names if load_family(name).tokenizer == tokenizer_class)
    return next(own, next(iter(names), ""))
