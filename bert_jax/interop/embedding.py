"""How a text becomes a vector, in the words of sentence-transformers."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# What `library` has for a model that no program of the library has written.
LIBRARY_DEFAULTS = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
# The terms of pre-training whose heads a model has, by its kind; a dense model may have any.
TERMS = {"sparse": ("masked_lm",), "multi_vector": ()}


class Embedding(NamedTuple):
    """How a text becomes a vector.

    Attributes:
      pooling: "cls" or "mean" for dense vectors, "max" or "sum" for sparse ones, "tokens" for
        multi-vector; None if a file that would name it is missing.
      normalize: Whether vectors are scaled to length 1.
      max_length: The largest number of tokens in a text; None for the model's limit. A larger
        number than that limit has no effect.
      stride: If given, longer texts are split into windows of `max_length` that begin this many
        tokens apart, and their vectors are averaged. None cuts longer texts.
      prompt: What is put before each text.
      lowercase: Whether text is lower-cased before it is tokenized.
      include_prompt: Whether the tokens of the prompt, and [CLS] before them, are pooled too.
      similarity: How vectors are compared: one of SIMILARITIES if they are dense, "dot" if they
        are sparse, and "maxsim" or "mean_maxsim" if there is one for each token.
      dimension: The number of values that are kept of a vector, after `normalize`; None for all.
      normalize_last: Whether the vectors that are kept are scaled to length 1.
      kind: "dense" for one vector, "sparse" for a weight for each token of the vocabulary, or
        "multi_vector" for a vector for each token of the text.
      query_length: The largest number of tokens in a query of a multi-vector model, and the
        length to which `expansion` fills it; None for `max_length`.
      expansion: Whether a query is filled with [MASK]s: "none"; "masked", which no token sees; or
        "attended".
      skip_words: The tokens of a document that have no vector.
      double_log: Whether the weights of a sparse vector are log1p(log1p(relu(x))).
      static_queries: Whether a query's weights are those of a table, without the encoder.
      is_query: Whether the texts are queries; only `for_queries` sets it.
      library: The other settings of the library, which are only kept: all prompts by name.
    """

    pooling: str | None = "mean"
    normalize: bool = False
    max_length: int | None = None
    stride: int | None = None
    prompt: str = ""
    lowercase: bool = False
    include_prompt: bool = True
    similarity: str = "cosine"
    dimension: int | None = None
    normalize_last: bool = False
    kind: str = "dense"
    query_length: int | None = None
    expansion: str = "none"
    skip_words: tuple[str, ...] = ()
    double_log: bool = False
    static_queries: bool = False
    is_query: bool = False
    library: Mapping[str, Any] = LIBRARY_DEFAULTS

    @property
    def prompts(self) -> Mapping[str, str]:
        return self.library["prompts"]

    def with_prompts(self, **prompts: str | None) -> Self:
        """Returns the settings with other prompts of some names, unless they are None."""
        given = {name: text for name, text in prompts.items() if text is not None}
        return self._replace(library={**self.library, "prompts": {**self.prompts, **given}})

    def for_queries(self) -> Self:
        """Returns the settings for queries, as in the library's `encode_query`."""
        return self._replace(
            prompt=self.prompts.get("query", ""),
            max_length=self.query_length or self.max_length,
            is_query=True,
        )

    def for_documents(self) -> Self:
        """Returns the settings for documents, as in the library's `encode_document`."""
        names = [name for name in ("document", "passage", "corpus") if name in self.prompts]
        return self._replace(prompt=self.prompts[names[0]] if names else "", is_query=False)
