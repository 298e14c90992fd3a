"""Turns texts into vectors, and finds similar ones."""

import operator
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.heads import multi_vector as multi_vector_head
from bert_jax.heads import sparse as sparse_head
from bert_jax.inference import POOLINGS, forward
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks.retrieval import similarities
from bert_jax.tasks.vectors import Vectors, by_token, compact, weights_of
from bert_jax.tokenizers import TokenRow
from bert_jax.tokenizers.given_texts import Text, as_texts

if TYPE_CHECKING:
    from scipy import sparse

    from bert_jax.inference.bert import Bert

# The modules of the heads with which these kinds of models are trained.
_HEADS = {"sparse": sparse_head, "multi_vector": multi_vector_head}
# The number of queries and of rows of a corpus that are compared at once.
_SEARCH_QUERIES, _SEARCH_ROWS = 256, 2**16


def encode(
    bert: "Bert",
    texts: str | Iterable[Text],
    *,
    pooling: str | None = None,
    layers: int | Sequence[int] = -1,
    max_length: int | None = None,
    normalize: bool | None = None,
    stride: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> "np.ndarray | list[np.ndarray] | sparse.csr_array":
    """Computes contextual features of texts, or of their tokens; a blank text is `[CLS] [SEP]`.

    A sparse or multi-vector model (`embedding.kind`) computes vectors of its own kind, and takes
    none of `pooling`, `layers`, `normalize` and `stride`. It takes texts for documents unless
    `prompt_name` is "query".

    Args:
      texts: Sentences, or pairs of sentences; or a single sentence.
      pooling: "cls" takes the first token's hidden state; "mean" averages the states of all
        tokens, with [CLS] and [SEP]; "tokens" takes every token's state. The default is in
        `embedding`.
      layers: One layer or a sequence of K: 0 is the embeddings' output, n the output of the
        n-th block, -1 the last.
      max_length: The length at which texts are cut off; the default is in `embedding`.
      normalize: Whether to scale vectors to length 1; the default is in `embedding`, and False
        for "tokens".
      stride: If given, longer texts are not cut, but split into windows of `max_length` that
        begin this many tokens apart, and the vectors of the windows are averaged.
      prompt: What is put before each text, such as "query: "; the default is in `embedding`.
      prompt_name: A name in `embedding.prompts`, such as "query"; used without `prompt`.

    Returns:
      float32 [N, D], or [N, K, D] for a sequence of layers. With "tokens" a list of
      [L, D] or [L, K, D] for texts of L tokens. For a single sentence, without N or the list. A
      multi-vector model returns a list of [L, W]; a sparse model a matrix of scipy with a weight
      for each token of the vocabulary, [N, V], or [1, V] for a single sentence.
    """
    one_layer = not isinstance(layers, Iterable)
    chosen = bert.layers([layers] if one_layer else layers)
    embedding = bert.embedding_with(pooling, normalize, max_length, stride, prompt, prompt_name)
    rows = bert.embedding_rows(as_texts(texts), embedding)
    features = bert.features(rows, chosen, embedding)
    if embedding.kind == "sparse":
        return features
    if one_layer and embedding.kind == "dense":
        features = [x[..., 0, :] for x in features]
    if isinstance(texts, str):
        return features[0]
    if embedding.pooling == "tokens":
        return features
    if not features:
        shape = () if one_layer else (len(chosen),)
        return np.zeros((0, *shape, bert.width(embedding)), np.float32)
    return np.stack(features)


def encode_query(
    bert: "Bert",
    texts: Any,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encodes queries, by default with the prompt named query, if any; see `encode`."""
    prompt = _prompt(bert, bert.embedding.for_queries(), prompt, prompt_name)
    return bert.encode(texts, prompt_name="query", prompt=prompt, **options)


def encode_document(
    bert: "Bert",
    texts: Any,
    prompt_name: str | None = None,
    prompt: str | None = None,
    **options: Any,
) -> Any:
    """Encodes documents, by default with the prompt named document, passage or corpus."""
    prompt = _prompt(bert, bert.embedding.for_documents(), prompt, prompt_name)
    return bert.encode(texts, prompt_name="document", prompt=prompt, **options)


def decode(
    bert: "Bert", embeddings: "sparse.csr_array", top_k: int | None = None
) -> list[list[tuple[str, float]]]:
    """Returns the tokens of sparse vectors [N, V] with their weights, the largest first.

    Args:
      top_k: The largest number of tokens of a vector; by default all.
    """
    if bert.embedding.kind != "sparse":
        raise UserError(f"decode is for sparse vectors, but {bert.source} is a {_kind_of(bert)}")
    return [by_token(bert.tokenizer, *pair)[:top_k] for pair in weights_of(embeddings)]


def similarity(bert: "Bert", embeddings1: Vectors, embeddings2: Vectors) -> np.ndarray:
    """Compares the vectors of N texts with those of M others by `embedding.similarity`: [N, M].

    Args:
      embeddings1, embeddings2: [N, D] and [M, D], or [D] for one text; for a sparse model a sparse
        matrix; for a multi-vector model a list of [L, W], or [L, W] for one text.
    """
    second = _as_several(bert, embeddings2)
    kind, every_M = bert.embedding.similarity, np.arange(_count(second))
    return similarities(_as_several(bert, embeddings1), second, every_M, kind)(slice(None))


def search(
    bert: "Bert", query_embeddings: Vectors, corpus_embeddings: Vectors, top_k: int = 10
) -> list[list[dict[str, Any]]]:
    """Finds the vectors of a corpus that are most similar to each query.

    Args:
      query_embeddings: The vectors of Q queries; see `similarity`.
      corpus_embeddings: Those of N texts; a part at a time is read, so that it may be a memory map.

    Returns:
      For each query the `corpus_id` and the `score` of the top_k, the most similar first. Of
      equally similar ones, the lowest ids come first.
    """
    # JAX would cache the float 5.0 and then fail for the equal integer 5 too.
    found, top_k = [], operator.index(top_k)
    queries = _as_several(bert, query_embeddings)
    for first in range(0, _count(queries), _SEARCH_QUERIES):
        part = queries[first : first + _SEARCH_QUERIES]
        size = _count(part)
        scores, ids = [np.zeros((size, 0))], [np.zeros((size, 0), np.int64)]
        for start in range(0, _count(corpus_embeddings), _SEARCH_ROWS):
            similarity = bert.similarity(part, corpus_embeddings[start : start + _SEARCH_ROWS])
            # top_k puts equal values in the order of their indices.
            best, at = jax.lax.top_k(similarity, min(top_k, similarity.shape[1]))
            scores.append(best)
            ids.append(start + np.asarray(at, np.int64))
        all_scores, all_ids = np.hstack(scores), np.hstack(ids)
        best, at = jax.lax.top_k(all_scores, min(top_k, all_scores.shape[1]))
        rows = zip(np.take_along_axis(all_ids, at, 1).tolist(), best.tolist(), strict=True)
        found += [[{"corpus_id": i, "score": x} for i, x in zip(*row, strict=True)] for row in rows]
    return found


def _as_several(bert: "Bert", embeddings: Vectors) -> Vectors:
    """Returns the vectors of several texts, of which there may be one."""
    if bert.embedding.kind == "dense":
        return np.atleast_2d(embeddings)
    is_one = isinstance(embeddings, np.ndarray) and embeddings.ndim == 2
    return [embeddings] if is_one and bert.embedding.kind == "multi_vector" else embeddings


def _count(embeddings: Vectors) -> int:
    # Sparse matrices have no len.
    return embeddings.shape[0] if hasattr(embeddings, "shape") else len(embeddings)


def embedding_rows(
    bert: "Bert", texts: Sequence[Text], embedding: Embedding, *, warns: bool = True
) -> list[TokenRow]:
    """Tokenizes texts with the prompt, for `features`. A stride leaves them whole."""
    if embedding.stride and any(isinstance(text, tuple) for text in texts):
        raise UserError("a stride splits only single texts, but there is a pair")
    length = None if embedding.stride else embedding.max_length
    rows = bert.tokenize(texts, length, embedding.prompt, lowercase=embedding.lowercase)
    if not embedding.include_prompt:
        prompt = embedding.prompt.lower() if embedding.lowercase else embedding.prompt
        num_left_out = bert.tokenizer.prompt_length(prompt, embedding.max_length)
        rows = [row._replace(num_left_out=num_left_out) for row in rows]
    if warns:
        bert.warn(rows, embedding.max_length)
    return rows


def layers(bert: "Bert", layers: Iterable[int]) -> tuple[int, ...]:
    """Converts layers to numbers from 0, the embeddings, to the last block's."""
    chosen, existing = list(layers), range(bert.config.num_hidden_layers + 1)
    if bert.embedding.kind != "dense" and chosen != [-1]:
        _refuse(bert, "layers", chosen)
    try:
        return tuple(existing[layer] for layer in chosen)
    except IndexError:
        last = existing[-1]
        raise UserError(
            f"layers is {chosen}; for {bert.source} it must be one or more numbers from 0 "
            f"(embeddings) to {last}, or from -{last + 1} to -1 (the last)"
        ) from None


def _refuse(bert: "Bert", name: str, value: Any) -> None:
    raise UserError(f"{name} is {value!r}: a {_kind_of(bert)} such as {bert.source} takes none")


def _kind_of(bert: "Bert") -> str:
    return f"{bert.embedding.kind.replace('_', '-')} model"


def require_dense(bert: "Bert", purpose: str) -> None:
    """Raises UserError if the model is a sparse or multi-vector one."""
    if bert.embedding.kind != "dense":
        raise UserError(
            f"{bert.source} is a {_kind_of(bert)}, but {purpose} needs a dense vector for each text"
        )


def embedding_with(
    bert: "Bert",
    pooling: str | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
    stride: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Embedding:
    """Returns `embedding` with the arguments that are not None instead of its own values."""
    own = bert.embedding
    if own.kind != "dense":
        own = own.for_queries() if prompt_name == "query" else own.for_documents()
        prompt_name = None if prompt_name in ("query", "document") else prompt_name
        for name, value in (("pooling", pooling), ("normalize", normalize), ("stride", stride)):
            if value is not None:
                _refuse(bert, name, value)
    if max_length is None and own.max_length:
        max_length = min(own.max_length, bert.max_length)
    length = bert.checked_length(max_length)
    pooling = own.pooling if pooling is None else pooling
    if own.kind == "dense" and pooling not in POOLINGS:
        raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
    normalized = own.normalize and pooling != "tokens" if normalize is None else normalize
    size = length - bert.tokenizer.template.num_special(is_pair=False)
    if stride is not None and (pooling == "tokens" or not 1 <= stride <= size):
        raise UserError(
            f"stride is {stride}; it must be from 1 to {size}, the text tokens of a window, "
            "with the pooling mean or cls"
        )
    return own._replace(
        pooling=pooling,
        normalize=normalized,
        normalize_last=bool(normalize),
        max_length=length,
        stride=stride,
        prompt=_prompt(bert, own, prompt, prompt_name),
    )


def _prompt(bert: "Bert", own: Embedding, prompt: str | None, prompt_name: str | None) -> str:
    """Returns `prompt`, or the prompt of `own` that is named, or else the default of `own`."""
    if prompt is not None or prompt_name is None:
        return own.prompt if prompt is None else prompt
    if prompt_name not in own.prompts:
        known = ", ".join(own.prompts) or "none"
        raise UserError(
            f"prompt_name is {prompt_name!r}; the prompts of {bert.source} are: {known}"
        )
    return own.prompts[prompt_name]


def features(
    bert: "Bert", rows: Sequence[TokenRow], layers: tuple[int, ...], embedding: Embedding
) -> Vectors:
    """Computes the features of each row: float32 [K, D], or [L, K, D] for "tokens".

    A sparse model has a matrix in CSR, [N, V]; a multi-vector model has a list of [L, W].
    """
    if embedding.kind != "dense":
        return _vectors_of_kind(bert, rows, embedding)
    program = partial(
        forward.features, bert.config, bert.params, layers=layers, pooling=embedding.pooling
    )
    if embedding.stride:
        windows = [_windows(bert, row, embedding) for row in rows]
        vectors = iter(bert.run([window for group in windows for window in group], program))
        features = [np.mean([next(vectors) for _ in group], axis=0) for group in windows]
    else:
        features = bert.run(rows, program)
    if embedding.pooling == "tokens":
        features = [
            states_KxLxD.swapaxes(0, 1)[: len(row.input_ids_L)]
            for row, states_KxLxD in zip(rows, features, strict=True)
        ]
    if embedding.normalize and not embedding.normalize_last:
        features = [_unit(x) for x in features]
    if embedding.pooling != "tokens":
        features = [x[..., : embedding.dimension] for x in features]
    return [_unit(x) for x in features] if embedding.normalize_last else features


def _vectors_of_kind(bert: "Bert", rows: Sequence[TokenRow], embedding: Embedding) -> Vectors:
    head, size = _HEADS[embedding.kind], bert.width(embedding)
    options = dict(head.model_options_of(embedding, bert.tokenizer))
    if embedding.kind == "multi_vector":
        options["width"] = size
    model = head.HEAD.model_class(bert.config, **options)
    if embedding.is_query:
        model = model.for_queries()
    shorten = partial(compact, kind=embedding.kind, vocab_size=bert.config.vocab_size)
    if not rows:
        return shorten({"embeddings": np.zeros((0, size), np.float32), "is_vector": ()})
    return bert.run(rows, partial(forward.vectors, model, bert.params), shorten)


def width(bert: "Bert", embedding: Embedding) -> int:
    if embedding.kind == "sparse":
        return bert.config.vocab_size
    if embedding.kind == "multi_vector":
        return bert.params["projection"]["kernel"].shape[1]
    size = bert.config.hidden_size
    return size if embedding.pooling == "tokens" else min(embedding.dimension or size, size)


def _windows(bert: "Bert", row: TokenRow, embedding: Embedding) -> list[TokenRow]:
    template = bert.tokenizer.template
    ids = row.input_ids_L[len(template.before) : len(row.input_ids_L) - len(template.after)]
    size = embedding.max_length - template.num_special(is_pair=False)
    starts = range(0, max(len(ids) - size, 0) + embedding.stride, embedding.stride)
    first, *others = (bert.tokenizer.join(ids[start : start + size]) for start in starts)
    # Only the first window has the prompt.
    return [first._replace(num_left_out=row.num_left_out), *others]


def _unit(x: np.ndarray) -> np.ndarray:
    """Scales vectors [..., D] to length 1; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
