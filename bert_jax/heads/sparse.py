"""A weight for each token of the vocabulary (SPLADE): `bert.encode`."""

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.heads import embedding as dense
from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from bert_jax.interop.embedding import Embedding
    from bert_jax.training.stages import Stage


def model_options_of(embedding: "Embedding", tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Returns the arguments of `SparseModel`; see `Head.model_options`."""
    special_ids: tuple[int, ...] = ()
    if tokenizer:
        # An unknown word has a weight, as in sentence-transformers.
        template = tokenizer.template
        special_ids = tuple(sorted({tokenizer.pad_id, *template.before, *template.after}))
    return {
        "pooling": embedding.pooling,
        "double_log": embedding.double_log,
        "static_queries": embedding.static_queries,
        "special_ids": special_ids,
    }


def _embedding(config: ConfigDict) -> dict[str, Any]:
    own = config.embedding
    return dense.embedding(config) | {
        "kind": "sparse",
        "pooling": "max",
        "normalize": False,
        "double_log": own.double_log,
        "static_queries": own.static_queries,
    }


def _loss_options(
    config: ConfigDict, class_counts: Mapping[str, int], stage: "Stage"
) -> dict[str, Any]:
    own = config.embedding
    return dense.loss_options(config, class_counts, stage) | {
        "query_flops": own.query_flops,
        "document_flops": own.document_flops,
        "flops_warmup": int(stage.num_steps * own.flops_warmup),
    }


HEAD = dataclasses.replace(
    dense.HEAD,
    model="bert_jax.models.sparse_model:SparseModel",
    loss="bert_jax.objectives.sparse:SparseContrastive",
    num_outputs=None,
    model_options=lambda config, tokenizer: model_options_of(
        SimpleNamespace(**_embedding(config)), tokenizer
    ),
    loss_options=_loss_options,
    embedding=_embedding,
    vector_weights=("mlm/", "query_weights"),
)
