"""Writes text by filling masks step by step (masked diffusion), in one compiled program."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import ORDERS
from bert_jax.inference.filling import count_masks, mask_positions
from bert_jax.inference.forward import Inputs
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.term import Term, with_tokens
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import MASK, TokenRow
from bert_jax.tokenizers.given_texts import Text, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# The most rows of a batch, samples counted. Each mask needs arrays of the vocabulary's size.
_CHUNK_ROWS = 16
# Stands for a mask in `Written.history`.
OPEN = "_"


class Written(NamedTuple):
    """A text that was written.

    Attributes:
      text: The text with what was written; for a prompt with an answer, only the answer.
      history: The same after each step, with "_" where nothing is written yet.
    """

    text: str
    history: list[str]


def write(
    bert: "Bert",
    text: str | Sequence[Text],
    text_b: str | Sequence[str] | None = None,
    *,
    length: int = 64,
    steps: int = 32,
    samples: int | None = None,
    order: str = "confident",
    block: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
) -> Any:
    """Writes where a text has [MASK] or, without one, at its end.

    Each step runs the model on the whole text, draws a token for each open position, and keeps
    some of them (Nie et al. 2025, arXiv:2502.09992, section 2.4). The result depends on the text,
    the options and the seed, not on other texts.

    Args:
      text: A prompt, or a list of prompts or pairs.
      text_b: The beginning of the answer to a prompt, often empty, for a model that was trained on
        prompts with answers. The answer ends where the model writes its end.
      length: The number of tokens to write for each [MASK].
      steps: The number of steps in which the tokens of a text are written, about equally many in
        each.
      samples: The number of texts to write for each prompt.
      order: "confident" keeps the most probable tokens of each step; "random" keeps any.
      block: The number of tokens of a block; blocks are written from left to right. 0 writes
        anywhere.
      temperature: The divisor of the logits; 0 takes the likeliest token.

    Returns:
      A `Written`, or a list of them if `samples` is given; for a list of prompts a list of these.
    """
    least = {"length": 1, "steps": 1, "samples": 1, "block": 0, "temperature": 0}
    given = (length, steps, 1 if samples is None else samples, block, temperature)
    for (name, lowest), value in zip(least.items(), given, strict=True):
        if not value >= lowest:
            raise UserError(f"{name} is {value}; it must be at least {lowest}")
    if order not in ORDERS:
        raise UserError(f"order is {order!r}; it must be {' or '.join(ORDERS)}")
    tokenizer = bert.tokenizer
    texts = [_with_hole(bert, each) for each in as_texts(text, text_b)]
    rows = bert.tokenize(texts, None, masks=True)
    rows = [_stretched(row, tokenizer.mask_id, length) for row in rows]
    longest = max((len(row.input_ids_L) for row in rows), default=0)
    if longest > bert.max_length:
        raise UserError(
            f"a text has {longest} tokens with what is to be written; {bert.source} takes up to "
            f"{bert.max_length}: shorten it, or take a smaller length"
        )
    positions = [np.flatnonzero(row.input_ids_L == tokenizer.mask_id) for row in rows]
    num_masks = max(map(len, positions), default=0)
    if block and steps < (num_blocks := -(-num_masks // block)):
        raise UserError(f"steps is {steps}; {num_blocks} blocks of {block} tokens need as many")
    may_write_W = np.arange(bert.config.padded_vocab_size) < bert.config.vocab_size
    may_write_W[[i for i in tokenizer.special_ids if i != tokenizer.sep_id]] = False

    def program(inputs: Inputs) -> jax.Array:
        return filled(
            bert.config,
            bert.params,
            inputs.fields(),
            mask_positions(tokenizer, inputs, num_masks, fill=-1),
            may_write_W,
            jax.random.key(seed),
            float(temperature),
            term=make_terms([bert.masked_lm])[0],
            samples=samples or 1,
            steps=min(steps, num_masks),
            block=block or num_masks,
            is_random=order == "random",
        )

    size, written = max(1, _CHUNK_ROWS // (samples or 1)), []
    chunks = (rows[first : first + size] for first in range(0, len(rows), size))
    found = (filled_Sx2xM for chunk in chunks for filled_Sx2xM in bert.run(chunk, program))
    for each, row, at_M, filled_Sx2xM in zip(texts, rows, positions, found, strict=True):
        parts = bert, row, isinstance(each, tuple), at_M
        of_row = [_written(*parts, *x_2xM[:, : len(at_M)].astype(int)) for x_2xM in filled_Sx2xM]
        written.append(of_row[0] if samples is None else of_row)
    return one_or_all(text, written)


@partial(jax.jit, static_argnames=("config", "term", "samples", "steps", "block", "is_random"))
def filled(
    config: BertConfig,
    params: Any,
    batch: dict[str, jax.Array],
    positions_BxM: np.ndarray,
    may_write_W: np.ndarray,
    key: jax.Array,
    temperature: float,
    *,
    term: Term,
    samples: int,
    steps: int,
    block: int,
    is_random: bool,
) -> jax.Array:
    """Fills the masks of each row S times, each time with different random numbers.

    Args:
      batch: The fields of the encoder, [B, L].
      positions_BxM: The masks of each row, ascending; -1 where a row has fewer than M.
      may_write_W: bool, the tokens that may be written.
      key: Each sample draws its own random numbers from it; all rows share them.

    Returns:
      float32 [B, S, 2, M]: the tokens, and the steps, from 0, at which they were kept; NaN where
      the model computes NaN.
    """
    num_rows, num_masks = positions_BxM.shape
    repeat = partial(jnp.repeat, repeats=samples, axis=0)
    batch, positions_NxM = jax.tree.map(repeat, (batch, jnp.asarray(positions_BxM)))
    is_mask_NxM, at_NxM = positions_NxM >= 0, jnp.maximum(positions_NxM, 0)
    batch["masked_lm_positions"], batch["masked_lm_ids"] = at_NxM, jnp.zeros_like(at_NxM)
    # The generator of ELECTRA would put samples where the weight is not 0.
    batch["masked_lm_weights"] = jnp.zeros(at_NxM.shape, jnp.float32)
    block_of_M = jnp.arange(num_masks) // block
    number_Nx1 = jnp.sum(is_mask_NxM, axis=1, keepdims=True)
    steps_Nx1 = jnp.clip(number_Nx1, 1, steps)
    blocks_Nx1 = jnp.maximum(-(-number_Nx1 // block), 1)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_tokens, of_order = jax.random.split(key)
        noise_MxW = jax.random.gumbel(of_tokens, (num_masks, len(may_write_W)))
        return noise_MxW, jax.random.uniform(of_order, (num_masks,))

    def step(carry: tuple[jax.Array, jax.Array], now: jax.Array) -> tuple[Any, jax.Array]:
        ids_NxL, kept_NxM = carry
        model = PreTrainingModel(config, (term,))
        logits_NxMxW = apply(model, params, {**batch, "input_ids": ids_NxL})[term.name]
        log_probs_NxMxW = jax.nn.log_softmax(jnp.where(may_write_W, logits_NxMxW, -jnp.inf))
        keys_S = jax.random.split(jax.random.fold_in(key, now), samples)
        noise_NxMxW, order_NxM = (
            jnp.tile(x, (num_rows,) + (1,) * (x.ndim - 1)) for x in jax.vmap(draw)(keys_S)
        )
        new_NxM = jnp.argmax(log_probs_NxMxW + temperature * noise_NxMxW, axis=-1)
        # A single NaN among the logits makes all probabilities NaN.
        is_nan_N = jnp.isnan(log_probs_NxMxW[..., 0]).any(axis=1)
        if not is_random:
            order_NxM = jnp.take_along_axis(log_probs_NxMxW, new_NxM[..., None], axis=-1)[..., 0]
        # The block whose turn it is, and the steps until its end.
        block_Nx1 = now * blocks_Nx1 // steps_Nx1
        left_Nx1 = jnp.maximum(-(-(block_Nx1 + 1) * steps_Nx1 // blocks_Nx1) - now, 1)
        is_open_NxM = is_mask_NxM & (kept_NxM < 0) & (block_of_M == block_Nx1)
        number_Nx1 = -(-jnp.sum(is_open_NxM, axis=1, keepdims=True) // left_Nx1)
        first_NxM = jnp.argsort(jnp.where(is_open_NxM, -order_NxM, jnp.inf), axis=1)
        is_kept_NxM = is_open_NxM & (jnp.argsort(first_NxM, axis=1) < number_Nx1)
        ids_NxL = with_tokens(ids_NxL, at_NxM, new_NxM.astype(jnp.int32), is_kept_NxM)
        return (ids_NxL, jnp.where(is_kept_NxM, now, kept_NxM)), is_nan_N

    first = batch["input_ids"], jnp.full_like(at_NxM, -1)
    (ids_NxL, kept_NxM), is_nan_TxN = jax.lax.scan(step, first, jnp.arange(steps))
    tokens_NxM = jnp.take_along_axis(ids_NxL, at_NxM, axis=1)
    filled_Nx2xM = jnp.stack([tokens_NxM, kept_NxM], axis=1)
    filled_Nx2xM = jnp.where(is_nan_TxN.any(axis=0)[:, None, None], jnp.nan, filled_Nx2xM)
    return filled_Nx2xM.reshape(num_rows, samples, 2, num_masks)


def _with_hole(bert: "Bert", text: Text) -> Text:
    """Adds a mask at the end of a text, or of the second one, if there is none."""
    if count_masks(bert.tokenizer, text):
        return text
    *before, last = (text,) if isinstance(text, str) else text
    # Without a space before it: in some vocabularies a space is a token, and words begin with one.
    last += MASK
    return (*before, last) if before else last


def _stretched(row: TokenRow, mask_id: int, length: int) -> TokenRow:
    """Repeats each mask of a row `length` times."""
    times_L = np.where(row.input_ids_L == mask_id, length, 1)
    ids_L = np.repeat(row.input_ids_L, times_L)
    return row._replace(input_ids_L=ids_L, num_first=int(times_L[: row.num_first].sum()))


def _written(
    bert: "Bert",
    row: TokenRow,
    is_pair: bool,
    at_M: np.ndarray,
    tokens_M: np.ndarray,
    kept_M: np.ndarray,
) -> Written:
    tokenizer, history = bert.tokenizer, []
    hidden = {*tokenizer.special_ids} - {tokenizer.mask_id, tokenizer.unk_id}
    for step in range(int(kept_M.max()) + 1):
        ids_L = row.input_ids_L.copy()
        ids_L[at_M] = np.where(kept_M <= step, tokens_M, tokenizer.mask_id)
        if is_pair:
            # [SEP] is before the answer and, as the first that was written, after it.
            ends = row.input_ids_L == tokenizer.sep_id
            ids_L = ids_L[np.flatnonzero(ends)[0] + len(tokenizer.template.between) :]
            ids_L = ids_L[: np.flatnonzero(ids_L == tokenizer.sep_id)[0]]
        text = tokenizer.decode([i for i in ids_L if i not in hidden])
        history.append(text.replace(tokenizer.special_tokens.mask, OPEN))
    return Written(history[-1], history)
