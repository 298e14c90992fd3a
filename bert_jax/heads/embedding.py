"""A vector for a text: `bert.encode`, which every model has."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.config.task_sections import DISTILLATION, embedding_similarity, values_of_sets
from bert_jax.heads.head import Head
from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from bert_jax.training.stages import Stage


def _model_options(config: ConfigDict, tokenizer: Tokenizer | None) -> dict[str, Any]:
    # Only the loss softmax has labels.
    return {"pooling": config.embedding.pooling, "num_outputs": len(config.labels)}


def loss_options(
    config: ConfigDict, class_counts: Mapping[str, int], stage: "Stage"
) -> dict[str, Any]:
    """Returns the arguments of `Contrastive`."""
    own, options = config.embedding, {}
    if own.loss in ("mnr", "cosent", "angle"):
        options["scale"] = own.scale
    if own.loss == "mnr":
        options |= {"symmetric": own.symmetric, "same_side": own.same_side}
    if own.loss == "kl":
        options["temperature"] = own.temperature
        options["teacher_temperature"] = own.teacher_temperature
    if own.margin and own.loss in ("contrastive", "triplet"):
        options["margin"] = own.margin
    return {
        "loss_name": own.loss,
        "options": options,
        "similarity": embedding_similarity(own),
        "dims": tuple(dim or config.model.hidden_size for dim in own.dims if any(own.dims)),
        "dim_weights": own.dim_weights * (len(own.dims) // len(own.dim_weights)),
        "mask_duplicates": own.mask_duplicates,
        "num_chunks": config.train.gradient_accumulation_steps,
        "num_texts": stage.batch_size // config.train.batch_size,
    }


def embedding(config: ConfigDict) -> dict[str, Any]:
    """Returns the arguments of `Embedding`."""
    own = config.embedding
    # All texts of training had a prompt that both sides have.
    is_same = bool(own.query_prompt) and own.query_prompt == own.document_prompt
    prompts = {"query": own.query_prompt, "document": own.document_prompt}
    for side in ("query", "document"):
        # Those of single data sets.
        for name, text in values_of_sets(own[f"{side}_prompts"]):
            prompts[f"{name}_{side}"] = text
    return {
        "pooling": own.pooling,
        "normalize": own.normalize,
        "max_length": config.data.max_seq_length,
        "include_prompt": own.include_prompt,
        "prompt": own.query_prompt if is_same else "",
        "similarity": embedding_similarity(own),
        "library": {
            "prompts": prompts,
            "default_prompt_name": "query" if is_same else None,
            "similarity_fn_name": embedding_similarity(own),
        },
    }


def _batch_fields(config: ConfigDict, texts: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Describes what `tasks.embedding_rows.TupleRows` gives for an anchor and its documents."""
    rows, length = config.train.batch_size, config.data.max_seq_length
    documents = rows, texts - 1
    own_length = config.embedding.query_length if config.head == "multi_vector" else length
    inputs = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (rows, own_length))
    shapes = inputs | dict.fromkeys(("document_ids", "document_mask"), (*documents, length))
    shapes |= {"query_numbers": (rows,), "document_numbers": documents}
    label_type = np.int32 if config.labels else np.float32
    # A teacher scores each document.
    label_shape = documents if config.embedding.loss in DISTILLATION else (rows,)
    return {name: (shape, np.int32) for name, shape in shapes.items()} | {
        "labels": (label_shape, label_type)
    }


HEAD = Head(
    model="bert_jax.models.embedding_model:EmbeddingModel",
    loss="bert_jax.objectives.contrastive:Contrastive",
    model_options=_model_options,
    loss_options=loss_options,
    # Negatives come from the whole batch.
    divides_batch=True,
    embedding=embedding,
    batch_fields=_batch_fields,
    # An anchor, a positive and the negatives.
    num_texts=lambda config: 2 + len(config.embedding.negative_columns),
    advice={
        "compute vectors": "predict --model={path} features --input=FILE.txt --output=FILE.npz",
        "score them on retrieval": "evaluate --model={path} --retrieval=FOLDER",
        "load it in sentence-transformers": (
            "convert --model={path} --output=DIR --to=sentence_transformers"
        ),
    },
)
