"""An HTML page that shows attention, in one file without network access."""

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
    """Returns the HTML of the page, with its script and data.

    Args:
      view: The result of `Bert.attention`. Probabilities are stored as bfloat16, with a relative
        error of 1/512, because small probabilities matter when [CLS] and [SEP] are hidden. 12
        layers with 12 heads on 128 tokens take 6 MB.
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
    # Without "<", no token can end the script element or begin a comment in it.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("bert_jax.inference").joinpath(_TEMPLATE).read_text("utf-8")
    return template.replace(_DATA, text)
