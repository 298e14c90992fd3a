"""Writes the text that stood where masks are (BART)."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from bert_jax.inference.forward import Inputs
from bert_jax.models.greedy_decoding import denoised, longest_text
from bert_jax.tokenizers.given_texts import as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert


def denoise(bert: "Bert", text: str | Sequence[str]) -> str | list[str]:
    """Writes the text that was corrupted, with BART's decoder and no search (greedily).

    Args:
      text: A text; each [MASK] in it stands for any number of words. Or a list of texts.

    Returns:
      A text, which is cut with a warning if it does not end; see `longest_text`. Or a list.
    """
    special = bert.tokenizer.special_ids
    ids = {"sep_id": bert.tokenizer.sep_id, "pad_id": bert.tokenizer.pad_id}

    def program(inputs: Inputs) -> jax.Array:
        rows, longest = inputs.fields(), longest_text(inputs.input_ids_BxL.shape[1])
        inputs = bert.params["bert"], rows["input_ids"], rows["attention_mask"]
        length = min(longest, bert.config.max_position_embeddings)
        return denoised(bert.config, *inputs, length=length, **ids)

    texts = []
    for ids_T in bert.run(bert.rows(as_texts(text), masks=True), program):
        if bert.tokenizer.sep_id not in ids_T[1:]:
            warnings.warn("a denoised text does not end and is cut", stacklevel=2)
        texts.append(bert.tokenizer.decode(ids_T[~np.isin(ids_T, special)]))
    return one_or_all(text, texts)
