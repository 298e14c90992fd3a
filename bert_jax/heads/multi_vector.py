"""A vector for each token of a text (ColBERT): `bert.encode`."""

import dataclasses
import string
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.heads import embedding as dense
from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from bert_jax.interop.embedding import Embedding


def model_options_of(embedding: "Embedding", tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns the arguments of `MultiVectorModel` but its width; see `Head.model_options`."""
    options: dict[str, Any] = {"expansion": embedding.expansion}
    if embedding.query_length:
        options["query_length"] = embedding.query_length
    if tokenizer:
        # Other words become several tokens, or the unknown one.
        ids = tokenizer.ids
        options["skip_ids"] = tuple(ids[word] for word in embedding.skip_words if word in ids)
        options["mask_id"] = tokenizer.mask_id
    return options


def _embedding(config: ConfigDict) -> dict[str, Any]:
    own = config.embedding
    return dense.embedding(config) | {
        "kind": "multi_vector",
        "pooling": "tokens",
        "normalize": False,
        "query_length": own.query_length,
        "expansion": own.expansion,
        "skip_words": tuple(string.punctuation) if own.skip_punctuation else (),
    }


def _model_options(config: ConfigDict, tokenizer: Tokenizer | None) -> dict[str, Any]:
    options = model_options_of(SimpleNamespace(**_embedding(config)), tokenizer)
    return options | {"width": config.embedding.width}


HEAD = dataclasses.replace(
    dense.HEAD,
    model="bert_jax.models.multi_vector_model:MultiVectorModel",
    num_outputs=None,
    model_options=_model_options,
    embedding=_embedding,
    vector_weights=("projection/",),
)
