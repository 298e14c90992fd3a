"""The compiled forward passes of inference, and the batches of rows that they run on.

Each forward pass is compiled once for every shape of its inputs, so batches have few shapes. It
computes no more than its result needs: features of layer 3 run three layers. Heads may be absent
from the parameters.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.models import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.embedding_model import pooled
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.models.task_models import TaskModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.term import Term
from bert_jax.objectives.terms.electra import ReplacedToken
from bert_jax.tasks.vectors import joined, taken
from bert_jax.tokenizers import TokenRow

# Rows are padded to these lengths. Texts are sorted by length, which keeps the padding small.
LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
LENGTHS += (768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# The row counts of batches that are not full.
_ROWS = (1, 4, 16)
# Tokens in a full batch. On a CPU, their activations fit into the cache; an accelerator needs more
# tokens.
_CPU_BATCH_TOKENS, _ACCELERATOR_BATCH_TOKENS = 2**10, 2**15
# The most rows of a batch. Outputs may be as wide as a vocabulary: with 250,000 tokens, these rows
# take 1 GB in float32.
_MAX_ROWS = 2**10
# Batches that are computed while the results of earlier ones are copied.
_IN_FLIGHT = 2


class Inputs(NamedTuple):
    """A padded batch.

    Attributes:
      token_type_ids_BxL: int32, 1 in segment B.
      lengths_B: int32, the number of tokens that are not padding.
      num_left_out_B: int32, the number of first tokens that are not pooled.
    """

    input_ids_BxL: np.ndarray
    token_type_ids_BxL: np.ndarray
    lengths_B: np.ndarray
    num_left_out_B: np.ndarray

    def fields(self) -> dict[str, jax.Array]:
        positions_L = jnp.arange(self.input_ids_BxL.shape[1])
        return {
            "input_ids": self.input_ids_BxL,
            "token_type_ids": self.token_type_ids_BxL,
            "attention_mask": (positions_L < self.lengths_B[:, None]).astype(jnp.int32),
        }


@partial(jax.jit, static_argnames=("config", "layers", "pooling"))
def features(
    config: BertConfig, params: Any, inputs: Inputs, layers: tuple[int, ...], pooling: str
) -> jax.Array:
    """Computes float32 hidden states, [B, K, D], or [B, K, L, D] if pooling is "tokens".

    `Bert.encode` describes the pooling and the K layers, which count from 0 here.
    """
    states = _hidden_states(config, params, inputs)
    if pooling == "tokens":
        return jnp.stack([states[layer] for layer in layers], axis=1)
    position_L = jnp.arange(inputs.input_ids_BxL.shape[1])
    is_pooled_BxL = position_L < inputs.lengths_B[:, None]
    is_pooled_BxL &= position_L >= inputs.num_left_out_B[:, None]
    return jnp.stack([pooled(states[layer], is_pooled_BxL, pooling) for layer in layers], axis=1)


@partial(jax.jit, static_argnames="config")
def attention(config: BertConfig, params: Any, inputs: Inputs) -> jax.Array:
    """Computes the attention probabilities of all N layers, float32 [B, N, A, L, L]."""
    _, sown = _hidden_states(config, params, inputs, mutable=["intermediates"])
    encoder = sown["intermediates"]["encoder"]
    groups = [encoder[f"layer_{group}"] for group in range(config.num_groups)]
    # A group sows once for each of its blocks.
    probabilities = [p for group in groups for p in group["attention"]["probabilities"]]
    return jnp.stack(probabilities, axis=1)


@partial(jax.jit, static_argnames=("config", "term"))
def log_probs(
    config: BertConfig, params: Any, inputs: Inputs, term: Term, **fields: np.ndarray
) -> jax.Array:
    """Computes the log-probabilities that a term's head predicts, float32 [..., classes].

    Args:
      **fields: The batch fields that the head reads in addition to the inputs.
    """
    model = PreTrainingModel(config, (term,))
    batch = inputs.fields() | fields
    logits = apply(model, params, batch)[term.name]
    # The tokens that pad the vocabulary have no probability.
    return jax.nn.log_softmax(logits)


@partial(jax.jit, static_argnames="config")
def replaced(config: BertConfig, params: Any, inputs: Inputs) -> jax.Array:
    """Computes the probability that each token is replaced, float32 [B, L] (ELECTRA)."""

    def run(model: PreTrainingModel) -> jax.Array:
        hidden_BxLxD, _ = model.bert(*inputs.fields().values(), deterministic=True)
        return jax.nn.sigmoid(model.rtd(hidden_BxLxD))

    model = PreTrainingModel(config, (ReplacedToken(),))
    return model.apply({"params": params}, method=run)


@partial(jax.jit, static_argnames="model")
def task_outputs(model: TaskModel, params: Any, inputs: Inputs) -> jax.Array:
    """Computes the outputs of a task head, stacked in the order of their names: [B, outputs, ...].

    They are "logits", or "end_logits" and "start_logits".
    """
    # Every choice of an example has its own row; the logits are compared later.
    batch = {
        name: x[:, None] if model.fields[name] == 3 else x for name, x in inputs.fields().items()
    }
    by_name = model.apply({"params": params}, batch, deterministic=True)
    return jnp.stack([by_name[name] for name in sorted(by_name)], axis=1)


@partial(jax.jit, static_argnames="model")
def vectors(model: nn.Module, params: Any, inputs: Inputs) -> dict[str, jax.Array]:
    """Computes the outputs of a `SparseModel` or a `MultiVectorModel`, each [B, ...]."""
    return apply(model, params, inputs.fields())


def _hidden_states(config, params, inputs, **options):
    """Computes the states of all layers; see `nn.Module.apply` for the options."""
    return BertEncoder(config, has_pooler=False).apply(
        {"params": params["bert"]},
        *inputs.fields().values(),
        deterministic=True,
        method="hidden_states",
        **options,
    )


def run_in_batches(
    rows: Sequence[TokenRow],
    program: Callable[[Inputs], Any],
    compact: Callable[[Any], Any] = list,
    *,
    max_length: int,
    source: str,
) -> Any:
    """Runs a compiled program on all rows.

    Args:
      program: Returns one or more arrays [B, ...] for the B rows of a batch.
      compact: Turns these arrays into the results of the rows: a list, or a sparse matrix.

    Returns:
      The results of all rows, as `compact` gives those of a batch.
    """
    if not rows:
        return []
    rows, numbers = distinct_rows(rows)
    lengths = [len(row.input_ids_L) for row in rows]
    is_cpu = jax.default_backend() == "cpu"
    batch_tokens = _CPU_BATCH_TOKENS if is_cpu else _ACCELERATOR_BATCH_TOKENS
    results, order = [], []
    running: deque[tuple[list[int], Any]] = deque()

    def copy_oldest():
        indices, outputs = running.popleft()
        # A batch may have more rows than texts.
        outputs = jax.tree.map(lambda x: np.asarray(x)[: len(indices)], outputs)
        if any(np.isnan(x).any() for x in jax.tree.leaves(outputs)):
            raise UserError(f"{source} computes NaN: its weights are damaged")
        results.append(compact(outputs))
        order.extend(indices)

    for indices, shape in text_batches(lengths, max_length=max_length, batch_tokens=batch_tokens):
        running.append((indices, program(_padded([rows[i] for i in indices], shape))))
        if len(running) > _IN_FLIGHT:
            copy_oldest()
    while running:
        copy_oldest()
    return taken(joined(results), np.argsort(order)[numbers])


def distinct_rows(rows: Sequence[TokenRow]) -> tuple[list[TokenRow], list[int]]:
    """Returns the different rows, and the number of each row's.

    Equal rows in batches of other shapes would have results that differ in their last bits.
    """
    keys = [(row.input_ids_L.tobytes(), row.num_first, row.num_left_out) for row in rows]
    distinct = dict(zip(keys, rows, strict=True))
    numbers = {key: n for n, key in enumerate(distinct)}
    return list(distinct.values()), [numbers[key] for key in keys]


def text_batches(
    lengths: Sequence[int], *, max_length: int, batch_tokens: int
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Splits texts into batches, the longest texts first.

    Yields:
      The indices of the texts of a batch, and its shape; it may have more rows than texts.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    first = 0
    while first < len(order):
        length = bucket(lengths[order[first]], max_length)
        full = min(max(1, batch_tokens // length), _MAX_ROWS)
        indices = order[first : first + full]
        first += full
        fitting = (rows for rows in _ROWS if len(indices) <= rows < full)
        yield indices, (next(fitting, full), length)


def bucket(length: int, max_length: int) -> int:
    """Finds the shortest of LENGTHS for `length` tokens, at most `max_length`."""
    return min(next((b for b in LENGTHS if length <= b), max_length), max_length)


def _padded(rows: Sequence[TokenRow], shape: tuple[int, int]) -> Inputs:
    ids_BxL, types_BxL = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    lengths_B, num_left_out_B = np.zeros((2, shape[0]), np.int32)
    for b, row in enumerate(rows):
        length = lengths_B[b] = len(row.input_ids_L)
        num_left_out_B[b] = row.num_left_out
        ids_BxL[b, :length] = row.input_ids_L
        types_BxL[b, row.num_first : length] = 1
    return Inputs(ids_BxL, types_BxL, lengths_B, num_left_out_B)
