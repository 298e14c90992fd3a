"""Compares bert_jax with the recorded PyTorch models; see benchmarks/golden/models.py."""

import dataclasses
import functools
import json
import re
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.interop.families import family_of_type, load_family
from bert_jax.interop.families.bert import BERT, SPANBERT
from bert_jax.interop.family import Family, Names, PreTrainingClass
from bert_jax.interop.huggingface import read_huggingface
from bert_jax.interop.model_keys import current_keys, read_family_keys, read_terms
from bert_jax.interop.names import ForeignTensor, export_weights, foreign_names, names_in_file
from bert_jax.interop.weights import expected_shapes, flatten, unflatten
from bert_jax.models import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.encoder import TransformerBlock
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.cross_entropy import DecoderInputs
from bert_jax.objectives.term import Term
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.terms.masked_lm import MaskedLM
from bert_jax.objectives.terms.retromae import RetroMAE
from tests.golden.inputs import (
    ANTIBODIES,
    masked_one_by_one,
    package_folder,
    projections,
    read_golden,
    section,
    signs,
)

# The boundary head of benchmarks/golden/spanbert.py, which no family exports.
_BOUNDARY = """
table position_embeddings position_embeddings.weight
matrix transform/kernel first.weight
vector transform/bias first.bias
vector layer_norm/scale first_layer_norm.weight
vector layer_norm/bias first_layer_norm.bias
matrix decoder/transform/kernel second.weight
vector decoder/transform/bias second.bias
vector decoder/layer_norm/scale second_layer_norm.weight
vector decoder/layer_norm/bias second_layer_norm.bias
vector decoder/output_bias bias
"""
_SPANBERT = dataclasses.replace(
    SPANBERT,
    names=(*SPANBERT.names, Names("sbo/", "boundary.", _BOUNDARY)),
    pretraining_classes=(PreTrainingClass("SpanBert", ("masked_lm", "span_boundary"), ()),),
)

_RETROMAE = dataclasses.replace(
    SPANBERT,
    names=(*SPANBERT.names, Names("retromae/layer/", "decoder.", SPANBERT.names[1].rows)),
    pretraining_classes=(PreTrainingClass("RetroMae", ("masked_lm", "retromae"), ()),),
)


class GivenSets(RetroMAE):
    """RetroMAE with the sets of tokens that the golden file has."""

    def visible(self, model, batch):
        return batch["visible"]


RANDOM = (
    "gelu",
    "one_head",
    "gelu_new",
    "relu",
    "roberta",
    "spanbert",
    "retromae",
    "distilbert",
    "albert",
    "electra",
    "electra_generator",
    "flaubert",
    "flaubert_pre",
    "bart",
    "modernbert",
    "nomic_bert",
    "gte",
    "jina_v3",
    "eurobert",
    "esm",
    "esmc",
)
INPUTS = ("input_ids", "token_type_ids", "attention_mask")

Model = tuple[PreTrainingModel, dict]
golden = functools.cache(read_golden)


class Errors(NamedTuple):
    """Differences from the reference, the largest of each kind.

    Attributes:
      outputs: Pooled output, logits and losses; absolute below 1, relative above.
      gradients: For each parameter, |ours - theirs| / |theirs|. A key's bias moves no
        probability, and its gradient is only rounding: its norm is divided by the norm of the
        query's bias.
      elements: The largest error of single elements of a gradient, relative to its largest element.
    """

    outputs: dict[str, float]
    gradients: dict[str, float]
    elements: dict[str, float]


@functools.cache
def random_model(name: str) -> Model:
    """Returns a model with the random weights of its golden file."""
    reference, family = golden(f"model_{name}"), _family(name)
    keys = json.loads(str(reference["config"]))
    config = BertConfig(**read_family_keys(current_keys(keys, family, name), family, name))
    (class_name,) = keys.get("architectures", [""])
    terms = read_terms({}, family, config.causal, class_name)
    shapes = expected_shapes(config, terms)
    theirs = _untied(section(reference, "weights"), family)
    names = names_in_file(family, theirs, config.max_blocks)
    assert {names[ours].name for ours in shapes} == theirs.keys()
    weights = {ours: names[ours].restore(theirs[names[ours].name], shapes[ours]) for ours in shapes}
    made = make_terms(terms)
    made = (made[0], GivenSets()) if name == "retromae" else made
    return PreTrainingModel(config, made), unflatten(weights, config)


def _untied(tensors: dict[str, np.ndarray], family: Family) -> dict[str, np.ndarray]:
    """Names tensors that two modules share as a file does; leaves out unused ones."""
    unused = re.compile(r".*(position_ids|inv_freq|contact_head.*)").fullmatch
    tensors = {name: x for name, x in tensors.items() if not unused(name)}
    shared = {copy: original for copy, original in family.tied.items() if original not in tensors}
    return {shared.get(name, name): tensor for name, tensor in tensors.items()}


def _family(name: str) -> Family:
    """Returns the family of a golden file with random weights."""
    if name in ("spanbert", "retromae"):
        return _SPANBERT if name == "spanbert" else _RETROMAE
    keys = json.loads(str(golden(f"model_{name}")["config"]))
    return load_family(family_of_type(keys.get("model_type", "bert")))


@functools.cache
def _pretrained(name: str):
    pretrained = read_huggingface(package_folder(name))
    # The vocabulary does not matter here. Heads that the file lacks are random and not compared.
    pretrained.tokenizer = None
    pretrained.complete()
    return pretrained


def real_model(name: str) -> Model:
    """Returns a trained model that bert_jax reads from its package."""
    pretrained = _pretrained(name)
    config = pretrained.model_config
    return PreTrainingModel(config, make_terms()), unflatten(pretrained.weights, config)


def states_error(model: Model, reference: dict[str, np.ndarray]) -> float:
    """Returns the largest error of any element of an encoder's states of real tokens."""
    batch, expected = section(reference, "batch"), reference["hidden_states"]
    actual = np.stack(_hidden_states(*model, batch))
    real_BxL = batch["attention_mask"] > 0
    actual, expected = actual[:, real_BxL], expected[:, real_BxL]
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max())


def _hidden_states(model: PreTrainingModel, params: dict, batch: dict) -> list[np.ndarray]:
    """Returns the outputs [B, L, D] of the embeddings and all blocks."""
    states = []

    def catch(method, args, kwargs, context):
        output = method(*args, **kwargs)
        called = (type(context.module), context.method_name)
        if called in ((BertEncoder, "embedded"), (TransformerBlock, "__call__")):
            jax.debug.callback(lambda x: states.append(np.asarray(x)), output, ordered=True)
        return output

    def run(params):
        with nn.intercept_methods(catch):
            return model.apply({"params": params}, method=functools.partial(_encode, batch=batch))

    jax.block_until_ready(jax.jit(run)(params))
    jax.effects_barrier()
    return states


def random_errors(name: str) -> Errors:
    """Compares all outputs and gradients of a model with random weights."""
    model, params = random_model(name)
    reference = golden(f"model_{name}")
    batch = section(reference, "batch")

    def loss(params):
        output, caught = model.apply(
            {"params": params},
            batch,
            deterministic=True,
            capture_intermediates=lambda module, _: module.name == "pooler",
        )
        outputs = {f"{term}_logits": _logits(found) for term, found in output.items()}
        for key in outputs.keys() & {
            "mlm_logits",
            "sbo_logits",
            "retromae_logits",
            "denoising_logits",
        }:
            outputs[key] = outputs[key][..., : model.config.vocab_size]
        outputs |= {f"{t.name}_loss": _mean_loss(t, output[t.name], batch) for t in model.terms}
        outputs["loss"] = sum(outputs[f"{t.name}_loss"] for t in model.terms)
        if "pooled_output" in reference:
            pooler = caught["intermediates"]["bert"]["pooler"]
            outputs["pooled_output"] = pooler["__call__"][0]
        return outputs["loss"], outputs

    grads, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    theirs = _untied(section(reference, "gradients"), _family(name))
    ours = named(grads, model, names_in_file(_family(name), theirs, model.config.max_blocks))
    assert ours.keys() == theirs.keys()
    errors, elements = {}, {}
    for key, expected in theirs.items():
        assert ours[key].shape == expected.shape, key
        off, size = ours[key] - expected, np.linalg.norm(expected)
        # With rotary positions, a key's bias moves probabilities.
        if is_rounding_alone(key) and not model.config.rope_theta:
            queries = np.linalg.norm(theirs[_query(key)])
            errors[key] = max(np.linalg.norm(ours[key]), size) / queries
        else:
            errors[key] = np.linalg.norm(off) / size
            elements[key] = np.abs(off).max() / np.abs(expected).max()
    return Errors(_outputs_errors(outputs, reference), errors, elements)


def _logits(found: Any) -> jax.Array:
    """Returns the logits in the output of a term."""
    if isinstance(found, DecoderInputs):
        return vocabulary_logits(*found)
    # ELECTRA's discriminator also returns its labels.
    return found[0] if isinstance(found, tuple) else found


def real_errors(name: str) -> Errors:
    """Compares a trained model.

    The golden file contains the gradients as projections on vectors of signs, whose root mean
    square is the norm, and as the largest elements.
    """
    model, params = real_model(name)
    reference = golden(f"real_{name}")
    batch = section(reference, "batch")

    def loss(params):
        hidden_BxLxD, pooled_BxD = model.apply(
            {"params": params}, method=functools.partial(_encode, batch=batch)
        )
        outputs = {"pooled_output": pooled_BxD}
        if "mlm_logits" in reference:
            logits_BxMxV = _mlm_logits(model, params, hidden_BxLxD, batch)
            total = _mean_loss(MaskedLM(), logits_BxMxV, batch)
            outputs |= {"mlm_logits": logits_BxMxV, "mlm_loss": total}
        else:
            total = _probe(hidden_BxLxD, batch["attention_mask"][..., None])
        total += _probe(pooled_BxD, np.ones((1, 1)))
        return total, outputs | {"loss": total}

    grads, outputs = jax.jit(jax.grad(loss, has_aux=True))(params)
    names = foreign_names(BERT.names, "huggingface", model.config.max_blocks)
    ours, kept = named(grads, model, names), section(reference, "gradients")
    errors, elements = {}, {}
    for key in {key.rsplit("/", 1)[0] for key in kept}:
        expected = section(kept, key)
        if is_rounding_alone(key):
            queries = kept[f"{_query(key)}/norm"]
            errors[key] = max(np.linalg.norm(ours[key]), expected["norm"]) / queries
        else:
            off = projections(key, ours[key]) - expected["projections"]
            errors[key] = np.sqrt(np.mean(off**2)) / expected["norm"]
            off = np.ravel(ours[key])[expected["at"]] - expected["largest"]
            elements[key] = np.abs(off).max() / np.abs(expected["largest"]).max()
    return Errors(_outputs_errors(outputs, reference), errors, elements)


def antiberty_predictions() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns each antibody's residues as predicted by bert_jax and PyTorch, and the true ones."""
    model, params = real_model("antiberty")
    reference = golden("real_antiberty")

    def predict(params, rows):
        hidden_BxLxD, _ = model.apply(
            {"params": params}, method=functools.partial(_encode, batch=rows)
        )
        return jnp.argmax(_mlm_logits(model, params, hidden_BxLxD, rows)[:, 0], axis=-1)

    predictions = {}
    for name, antibody in ANTIBODIES.items():
        rows = masked_one_by_one(antibody, int(reference["masked_every"]))
        ours = np.asarray(jax.jit(predict)(params, jax.tree.map(jnp.asarray, rows)))
        predictions[name] = (ours, reference[f"predicted/{name}"], rows["masked_lm_ids"][:, 0])
    return predictions


def _encode(model: PreTrainingModel, batch: dict):
    return model.bert(*(batch[name] for name in INPUTS), deterministic=True)


def _mlm_logits(model: PreTrainingModel, params: dict, hidden_BxLxD, batch: dict) -> jax.Array:
    def run(model):
        return model.mlm(
            hidden_BxLxD, batch["masked_lm_positions"], model.bert.embeddings.table_WxE
        )

    return model.apply({"params": params}, method=run)[..., : model.config.vocab_size]


def _mean_loss(term: Term, outputs: jax.Array, batch: dict) -> jax.Array:
    batch = jax.tree.map(jnp.asarray, batch)
    return term.sums(outputs, batch)[term.metrics[0].name][0] / term.total(batch)


def _probe(states: jax.Array, weights: np.ndarray) -> jax.Array:
    """Returns the mean with fixed signs where the weight is 1, as in golden/models.py."""
    weights = np.broadcast_to(weights, states.shape)
    return jnp.sum(states * signs("probe", states.size).reshape(states.shape) * weights) / (
        weights.sum()
    )


def named(
    params: dict, model: PreTrainingModel, names: dict[str, ForeignTensor]
) -> dict[str, np.ndarray]:
    """Converts gradients to the names and layouts of transformers."""
    flat = {name: np.asarray(x) for name, x in flatten(params, model.config).items()}
    return dict(export_weights(flat, names))


def _outputs_errors(outputs: dict, reference: dict[str, np.ndarray]) -> dict[str, float]:
    errors = {}
    for key, value in outputs.items():
        expected = reference[key]
        assert value.shape == expected.shape, key
        errors[key] = float((np.abs(value - expected) / np.maximum(np.abs(expected), 1)).max())
    return errors


def is_rounding_alone(name: str) -> bool:
    keys = ("attention.self.key.bias", "attention.key.bias", "k_lin.bias", "k_proj.bias")
    return name.endswith(keys)


def _query(name: str) -> str:
    """Returns the name of the query's bias for the name of the key's."""
    query = name.replace(".key.", ".query.")
    return query.replace("k_lin", "q_lin").replace("k_proj", "q_proj")
