"""The heads of fine-tuning. Each has a file with its record, methods and verb of `predict`."""

from bert_jax.base.parts import load_part
from bert_jax.heads.head import Head

HEADS = {
    "sequence_classification": "bert_jax.heads.sequence_classification:HEAD",
    "token_classification": "bert_jax.heads.token_classification:HEAD",
    "question_answering": "bert_jax.heads.question_answering:HEAD",
    "multiple_choice": "bert_jax.heads.multiple_choice:HEAD",
    "reranker": "bert_jax.heads.reranker:HEAD",
    "embedding": "bert_jax.heads.embedding:HEAD",
    "sparse": "bert_jax.heads.sparse:HEAD",
    "multi_vector": "bert_jax.heads.multi_vector:HEAD",
}


def load_head(name: str) -> Head:
    """Returns the head of this name: a key of HEADS, or MODULE:NAME of a trusted part."""
    return load_part(name, HEADS, "config.head")


def builtin_heads() -> dict[str, Head]:
    return {name: load_head(name) for name in HEADS}
