"""The encoder and its heads, as Flax Linen modules.

Letters in names are dimensions, here and in `bert_jax.objectives`:
B sequences, L positions, D hidden width, A heads, K depth of a head,
E width of the embeddings, F feed-forward width, M masked positions, C labels,
V vocabulary, W rows of the word embeddings (V, padded to a multiple of 128).

Every parameter carries logical axis names (`vocab`, `embed`, `heads`, ...);
only `bert_jax.parallel` maps them to the axes of a mesh.
"""

from bert_jax.models.bert_config import BertConfig

__all__ = ["BertConfig"]
