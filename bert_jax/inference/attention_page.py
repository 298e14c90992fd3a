"""A page on which a person looks at attention: one file, which asks the network for nothing."""

import base64
import json
from importlib import resources

import jax.numpy as jnp
import numpy as np

from bert_jax.inference.bert import Attention

_TEMPLATE = "attention_page.html"
_DATA = "__DATA__"
_DECIMALS = 4


def attention_page(view: Attention) -> str:
    """The page as HTML, its script and its data within.

    Args:
      view: Of `Bert.attention`. Probabilities are kept as bfloat16, to 1/512 of their own
        size, since small ones count where those of [CLS] and [SEP] are left out: those of 12
        layers and 12 heads on 128 tokens make 6 MB.
    """
    layers, heads = view.probabilities_NxAxLxL.shape[:2]
    halves = view.probabilities_NxAxLxL.astype(jnp.bfloat16).view(np.uint16).astype("<u2")
    data = {
        "tokens": view.tokens,
        "first": view.num_first,
        "layers": layers,
        "heads": heads,
        "guesses": [
            [position, [[guess.token, round(guess.probability, _DECIMALS)] for guess in guesses]]
            for position, guesses in view.guesses.items()
        ],
        "attention": base64.b64encode(halves.tobytes()).decode(),
    }
    # No token can end the script that the data stands in, nor begin a comment there.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("bert_jax.inference").joinpath(_TEMPLATE).read_text("utf-8")
    return template.replace(_DATA, text)
