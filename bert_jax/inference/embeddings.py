"""How a text becomes one vector: layers, options, and windows of long texts."""

import operator
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import POOLINGS
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.tokenizers import Tokenizer, TokenRow


def numbered(layers: Iterable[int], count: int, source: str) -> tuple[int, ...]:
    """Returns layers as numbers that are not negative; 0 is the embeddings.

    Raises:
      UserError: The model of `source`, with `count` layers, does not have one of them.
    """
    layers = [operator.index(layer) for layer in layers]
    if not layers or not all(-count <= layer < count for layer in layers):
        raise UserError(
            f"layers is {layers}; for {source} it must be one or more numbers from 0 (embeddings) "
            f"to {count - 1}, or from -{count} to -1 (the last)"
        )
    return tuple(layer % count for layer in layers)


def choose(
    own: Embedding,
    pooling: str | None,
    normalize: bool | None,
    length: int,
    stride: int | None,
    num_special: int,
) -> Embedding:
    """Returns `own`, with those arguments that are not None in place of its values.

    Args:
      own: The embedding of the model.
      pooling, normalize: As in `Embedding`; None for those of `own`.
      length, stride: The maximum length and the stride.
      num_special: The number of special tokens around a text.

    Raises:
      UserError: There is no such pooling, or the stride is out of range.
    """
    pooling = own.pooling if pooling is None else pooling
    if pooling not in POOLINGS:
        raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
    if normalize is None:
        normalize = own.normalize and pooling != "tokens"
    size = length - num_special
    if stride is not None and (pooling == "tokens" or not 1 <= stride <= size):
        raise UserError(
            f"stride is {stride}; it must be from 1 to {size}, the text tokens of a window, with "
            "the pooling mean or cls"
        )
    return Embedding(pooling, normalize, length, stride)


def mean_over_windows(
    run: Callable[[Sequence[TokenRow]], list[np.ndarray]],
    rows: Sequence[TokenRow],
    tokenizer: Tokenizer,
    how: Embedding,
) -> list[np.ndarray]:
    """Returns the mean of the vectors of each row's windows; `run` computes those of windows."""
    windows = [_divide(row, tokenizer, how.max_length, how.stride) for row in rows]
    vectors = iter(run([window for group in windows for window in group]))
    return [np.mean([next(vectors) for _ in group], axis=0) for group in windows]


def _divide(row: TokenRow, tokenizer: Tokenizer, max_length: int, stride: int) -> list[TokenRow]:
    template = tokenizer.template
    ids = row.input_ids_L[len(template.before) : len(row.input_ids_L) - len(template.after)]
    size = max_length - template.num_special(is_pair=False)
    starts = range(0, max(len(ids) - size, 0) + stride, stride)
    return [tokenizer.join(ids[start : start + size]) for start in starts]
