"""Turns a BERT into a DistilBERT, which then learns from it."""

from bert_jax.base.errors import UserError
from bert_jax.config.common import layer_numbers
from bert_jax.interop.families import DEFAULT
from bert_jax.interop.families.distilbert import DISTILBERT
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import keep_layers


def distil(pretrained: Pretrained, layers: str) -> None:
    """Turns a BERT into a DistilBERT that has the layers in a text such as "0,2,4,7,9,11".

    Like extract_distilbert.py in transformers' distillation project, this drops the token
    types, the pooler and the next-sentence head. The masked-LM head is kept.
    """
    kept = layer_numbers(layers, "--distil_layers")
    depth = pretrained.model["num_hidden_layers"]
    problem = pretrained.missing_head("masked_lm")
    if pretrained.family != DEFAULT:
        problem = f"the family of {pretrained.source} is {pretrained.family}, not {DEFAULT}"
    elif not set(kept) <= set(range(depth)):
        problem = f"{pretrained.source} has only the layers 0 to {depth - 1}"
    if problem:
        raise UserError(f"--distil_layers is {layers}, but {problem}")
    eps = pretrained.model["layer_norm_eps"]
    pretrained.model |= DISTILBERT.fixed
    pretrained.model |= {"num_hidden_layers": len(kept), "layer_norm_eps": eps}
    pretrained.weights = keep_layers(pretrained.weights, kept)
    pretrained.family, pretrained.terms, pretrained.training = "distilbert", ("masked_lm",), {}
