"""How the tokens of a text attend to each other, and a page that shows it."""

import base64
import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import forward
from bert_jax.inference.filling import Guess, count_masks, guess_masks
from bert_jax.reports.html import render
from bert_jax.tokenizers import MASK
from bert_jax.tokenizers.given_texts import as_texts

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# The number of attention probabilities of a text, which take 4 GB.
_MAX_PROBABILITIES = 2**30


class Attention(NamedTuple):
    """How a text's tokens attend to each other.

    Attributes:
      num_first: The number of tokens in segment A.
      probabilities_NxAxLxL: float32 for N layers and A heads; each row adds up to 1.
      guesses: The guesses for each masked position; empty without a mask or a masked-LM head.
    """

    tokens: list[str]
    num_first: int
    probabilities_NxAxLxL: np.ndarray
    guesses: dict[int, list[Guess]]

    def page(self) -> str:
        """Writes an HTML page that shows the attention, in one file without network access.

        Probabilities are stored as bfloat16, with a relative error of 1/512, because small
        probabilities matter when [CLS] and [SEP] are hidden. 12 layers with 12 heads on 128 tokens
        take 6 MB.
        """
        layers, heads = self.probabilities_NxAxLxL.shape[:2]
        halves = self.probabilities_NxAxLxL.astype(jnp.bfloat16).view(np.uint16).astype("<u2")
        data = {
            "tokens": self.tokens,
            "first": self.num_first,
            "layers": layers,
            "heads": heads,
            "guesses": [
                [position, [[guess.token, round(guess.probability, 4)] for guess in guesses]]
                for position, guesses in self.guesses.items()
            ],
            "attention": base64.b64encode(halves.tobytes()).decode(),
        }
        return render("bert_jax.inference", "attention_page.html", data=data)


def attention(
    bert: "Bert",
    text: str,
    text_b: str | None = None,
    *,
    top_k: int = 5,
    max_length: int | None = None,
) -> Attention:
    """Computes the attention of every token of a text, in every layer and head.

    [MASK] in the text is the mask token. The result has guesses for each mask if the model has
    a masked-LM head; otherwise there is a warning.
    """
    texts = as_texts(text, text_b)
    if len(texts) != 1:
        raise UserError(f"attention takes one text or pair, not a list of {len(texts)}")
    (row,) = bert.rows(texts, max_length, masks=True)
    length, c = len(row.input_ids_L), bert.config
    limit = math.isqrt(_MAX_PROBABILITIES // (c.num_hidden_layers * c.num_attention_heads))
    if length > limit:
        raise UserError(
            f"the text has {length:,} tokens, too many for their attention in all layers and "
            f"heads; give max_length={limit} or less"
        )
    missing = bert.missing.get("fill_mask")
    guesses = {} if missing else guess_masks(bert, [row], top_k)[0]
    num_missing = count_masks(bert.tokenizer, *texts) - len(guesses)
    if num_missing:
        cause = missing or "beyond the maximum length"
        warnings.warn(f"no predictions for {num_missing} {MASK}: {cause}", stacklevel=2)
    program = partial(forward.attention, bert.config, bert.params)
    (probabilities_NxAxLxL,) = bert.run([row], program)
    return Attention(
        [bert.tokenizer.piece_text(i) for i in row.input_ids_L],
        row.num_first,
        probabilities_NxAxLxL[..., :length, :length],
        guesses,
    )
