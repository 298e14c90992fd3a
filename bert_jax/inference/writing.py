"""Writes the text that follows a prompt, an answer, or what stands in holes of a text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import ORDERS
from bert_jax.inference.filling import count_masks, mask_positions
from bert_jax.inference.forward import Inputs
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.writing import after_each_step, filled, may_be_written, text_so_far
from bert_jax.tokenizers import MASK, TokenRow
from bert_jax.tokenizers.given_texts import Text, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# The most rows of a batch, samples counted. Each mask needs arrays of the vocabulary's size.
_CHUNK_ROWS = 16


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
        each. A text with fewer tokens to write takes one for each.
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

    def program(inputs: Inputs) -> jax.Array:
        return filled(
            bert.config,
            bert.params,
            inputs.fields(),
            mask_positions(tokenizer, inputs, num_masks, fill=-1),
            may_be_written(tokenizer, bert.config),
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
        of_row = [_written(*parts, filled_2xM[:, : len(at_M)]) for filled_2xM in filled_Sx2xM]
        written.append(of_row[0] if samples is None else of_row)
    return one_or_all(text, written)


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
    bert: "Bert", row: TokenRow, is_pair: bool, at_M: np.ndarray, filled_2xM: np.ndarray
) -> Written:
    tokenizer, history = bert.tokenizer, []
    for ids_L in after_each_step(row.input_ids_L, at_M, filled_2xM):
        if is_pair:
            # [SEP] is before the answer and, as the first that was written, after it.
            ends = row.input_ids_L == tokenizer.sep_id
            ids_L = ids_L[np.flatnonzero(ends)[0] + len(tokenizer.template.between) :]
            ids_L = ids_L[: np.flatnonzero(ids_L == tokenizer.sep_id)[0]]
        history.append(text_so_far(tokenizer, ids_L))
    return Written(history[-1], history)
