"""Floating-point operations of training on one sequence, matrix products only."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax

from bert_jax.models import BertConfig
from bert_jax.models.attention import AttentionMask
from bert_jax.models.encoder import TransformerBlock
from bert_jax.models.layers import matrices
from bert_jax.objectives.term import Term


def pretraining_flops_per_sequence(
    config: BertConfig,
    terms: Sequence[Term],
    length: int,
    num_predictions: int,
    teacher: BertConfig | None = None,
    mean_square: float | None = None,
) -> float:
    """Computes the FLOPs of forward and backward for one sequence.

    For BERT with N layers this is 3 [2 N S (4 H^2 + 2 H F) + 4 N S^2 H + 2 P (H^2 + H V) + 2 H^2],
    where S is `length` and P is `num_predictions`. A product of [m, k] and [k, n] counts 2 m k n
    and the backward pass twice the forward pass. Padding is counted; recomputation (remat) is not.
    A block with shared parameters counts each time it runs. A teacher has no backward pass. A
    decoder is counted by the term `denoising`; see `decoder_flops`.

    If sequences differ in length, the result is their mean for their mean `length`,
    `num_predictions` and `mean_square` of the length.
    """
    encoders = [config, *(encoder for term in terms for encoder in term.encoders(config))]
    blocks = sum(encoder_flops(encoder, length, mean_square) for encoder in encoders)
    heads = sum(term.head_flops(config, length, num_predictions) for term in terms)
    flops = 3.0 * (blocks + heads)
    if teacher:
        taught_terms = [term for term in terms if term.needs_teacher]
        flops += encoder_flops(teacher, length, mean_square)
        flops += sum(term.head_flops(teacher, length, num_predictions) for term in taught_terms)
    return flops


def encoder_flops(config: BertConfig, length: float, mean_square: float | None) -> float:
    """Computes the FLOPs of all blocks and of the projection of embeddings, forward."""
    layers, width = range(config.num_hidden_layers), config.embedding_width
    flops = sum(block_flops(config, length, mean_square, layer) for layer in layers)
    if width != config.hidden_size:
        flops += 2 * length * width * config.hidden_size
    return flops


def block_flops(
    config: BertConfig, length: float, mean_square: float | None = None, layer: int = 0
) -> float:
    """Computes the FLOPs of a block, forward. Only scores inside a window count."""
    scores = length**2 if mean_square is None else mean_square
    if config.is_local(layer) and length > config.window:
        # The windows at both ends of a row are cut.
        inside = length * (2 * config.window + 1) - config.window * (config.window + 1)
        scores = min(scores, inside)
    plain = dataclasses.replace(config, fused_attention="")
    products = _products_of_block(plain, config.group_of(layer))
    return 2 * length * products + 4 * scores * config.hidden_size


@functools.cache
def _products_of_block(config: BertConfig, layer: int) -> float:
    hidden_1x1xD = jax.ShapeDtypeStruct((1, 1, config.hidden_size), config.dtype)
    mask = AttentionMask(jax.ShapeDtypeStruct((1, 1, 1, 1), "float32"))
    return products_per_token(
        TransformerBlock(config, deterministic=True, layer=layer), hidden_1x1xD, mask
    )


def products_per_token(module: nn.Module, *inputs: Any) -> float:
    """Counts the multiplications that the matrices of a module take for a token, forward.

    Args:
      inputs: The shapes and dtypes of the inputs that the module is called with.
    """
    boxed = jax.eval_shape(functools.partial(module.init, jax.random.key(0)), *inputs)["params"]
    return sum(box.share * box.value.size for box in matrices(boxed).values())


def decoder_flops(config: BertConfig, source_length: float, target_length: float) -> float:
    """Computes the FLOPs of a decoder with its logits at all positions, forward.

    For S tokens of the source and T of the target, cross-attention adds 4 (T + S) H^2 + 4 T S H to
    each block.
    """
    width, s, t = config.hidden_size, source_length, target_length
    cross = 4 * (t + s) * width**2 + 4 * t * s * width
    blocks = config.num_decoder_layers * (block_flops(config, t) + cross)
    return blocks + 2 * t * width * config.vocab_size
