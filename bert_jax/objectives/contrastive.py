"""The losses of sentence embeddings, over the whole batch on all devices.

The formulas and the defaults are those of sentence-transformers. Similarities are float32, in a
run of bfloat16 too. Row i of a batch has an anchor and C documents: its positive first, then its
hard negatives. A loss takes the vectors of the whole batch, queries_BxD and documents_BxCxD, whose
rows are sharded over the devices; the compiler gathers the documents. mnr, margin_mse and kl also
take several vectors of a text; see `similarity`. Where a row has fewer documents than C,
`is_document_BxC` is False.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.layers import SMALLEST_SQUARE, unit
from bert_jax.models.multi_vector_model import MultiVectorModel
from bert_jax.objectives import ranking
from bert_jax.objectives.flops import encoder_flops
from bert_jax.objectives.objective import EXCLUDED, Batch, Metrics, apply, split_rows
from bert_jax.objectives.similarity import Vectors, all_scores, own_scores, prepared, products


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """A loss of the vectors of a whole batch; see `Objective`.

    Attributes:
      loss_name: A key of `LOSSES`.
      options: The arguments of that loss.
      similarity: The similarity in the losses mnr, margin_mse and kl; see `similarity.prepared`.
      dims: The loss is summed over vectors that are cut to these widths (Matryoshka, Kusupati et
        al. 2022); empty for whole vectors.
      dim_weights: The weight of each width.
      mask_duplicates: Whether equal texts are not used as negatives; see `same_texts`.
      num_texts: The number of texts in a row: its query and its documents.
      num_chunks: The encoder takes the batch in this many chunks, one after another, and computes
        each again in the backward pass (Gao et al. 2021). The loss is that of the whole batch.
    """

    loss_name: str = "mnr"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    similarity: str = "cosine"
    dims: tuple[int, ...] = ()
    dim_weights: tuple[float, ...] = ()
    mask_duplicates: bool = True
    num_texts: int = 2
    num_chunks: int = 1

    @property
    def averaged(self) -> tuple[str, ...]:
        has_accuracy = self.loss_name in ("mnr", "softmax")
        return ("loss", "accuracy") if has_accuracy else ("loss",)

    @property
    def progress(self) -> Mapping[str, str]:
        return {"accuracy": "accuracy"} if "accuracy" in self.averaged else {}

    def flops(self, model, length, num_predictions, mean_square=None):
        """Computes the mean FLOPs of the texts of a row, forward and backward.

        They are those of the encoder and its head. The products of a batch's vectors with one
        another are not counted.
        """
        query, document = self.forward_flops(model, length)
        return 3.0 * (document + (query - document) / self.num_texts)

    def forward_flops(self, model: Any, length: float) -> tuple[float, float]:
        """Computes the FLOPs of a query and of a document, forward."""
        if not isinstance(model, MultiVectorModel):
            return (encoder_flops(model.config, length, None),) * 2
        return tuple(
            encoder_flops(model.config, each, None)
            + 2 * each * model.config.hidden_size * model.width
            for each in (model.query_length, length)
        )

    def totals(self, batch: Batch) -> int:
        # The step never divides the batch of this objective.
        return 1

    def loss(self, model, params, batch, rngs, totals, frozen, step):
        queries, documents = self.embed(model, params, batch, rngs)
        if self.loss_name == "softmax":
            variables = {"params": params}
            pair = queries, documents[:, 0]
            metrics = softmax(model.apply(variables, *pair, method="classify"), batch["labels"])
            return metrics["loss"], metrics
        return self.of_vectors(queries, documents, batch)

    def of_vectors(
        self, queries: Vectors, documents: Vectors, batch: Batch
    ) -> tuple[jax.Array, Metrics]:
        """Computes the loss and the metrics of the vectors of a batch."""
        given: dict[str, Any] = {}
        if self.loss_name in _OF_SCORES:
            given["similarity"] = self.similarity
        if self.loss_name in _OF_DOCUMENTS:
            given["is_document_BxC"] = batch["document_numbers"] >= 0
        if self.loss_name == "mnr" and self.mask_duplicates:
            given |= same_texts(batch["query_numbers"], batch["document_numbers"])
        if "guide_queries" in batch:
            given["guide"] = batch["guide_queries"], batch["guide_documents"]

        def of_width(queries: Vectors, documents: Vectors) -> Metrics:
            loss = LOSSES[self.loss_name]
            return loss(queries, documents, batch.get("labels"), **given, **self.options)

        if not self.dims:
            metrics = of_width(queries, documents)
            return metrics["loss"], metrics
        # Only the similarities of one width are in memory.
        of_width = jax.checkpoint(of_width)
        found = [
            of_width(unit(queries[..., :dim]), unit(documents[..., :dim])) for dim in self.dims
        ]
        weighted = zip(self.dim_weights, found, strict=True)
        loss = sum(weight * metrics["loss"] for weight, metrics in weighted)
        return loss, found[0] | {"loss": loss}

    def embed(
        self, model: Any, params: Any, batch: Batch, rngs: Mapping[str, jax.Array]
    ) -> tuple[Vectors, Vectors]:
        """Computes the vectors of queries and documents, in chunks of every k-th row."""

        def side(model: Any, ids_NxL: jax.Array, mask_NxL: jax.Array, key: jax.Array) -> Vectors:
            types_NxL = jnp.zeros_like(ids_NxL)
            fields = dict(zip(model.INPUTS, (ids_NxL, types_NxL, mask_NxL), strict=True))
            found = apply(model, params, fields, rngs | {"dropout": key})
            if "is_vector" in found:
                return found["embeddings"], found["is_vector"]
            return found["embeddings"]

        def embed_chunk(chunk: tuple[jax.Array, ...]) -> tuple[Vectors, Vectors]:
            index, ids_BxL, mask_BxL, ids_BxCxL, mask_BxCxL = chunk
            key, other = jax.random.split(jax.random.fold_in(rngs["dropout"], index))
            rows, length = ids_BxCxL.shape[:2], ids_BxCxL.shape[2]
            flat = (x.reshape(-1, length) for x in (ids_BxCxL, mask_BxCxL))
            documents = side(model, *flat, other)
            documents = jax.tree.map(lambda x: x.reshape(*rows, *x.shape[1:]), documents)
            return side(model.for_queries(), ids_BxL, mask_BxL, key), documents

        names = ("input_ids", "attention_mask", "document_ids", "document_mask")
        fields = tuple(batch[name] for name in names)
        if self.num_chunks == 1:
            return embed_chunk((jnp.zeros([], jnp.int32), *fields))
        split = jax.tree.map(split_rows(self.num_chunks), fields)
        body = jax.checkpoint(lambda _, chunk: (None, embed_chunk(chunk)), prevent_cse=False)
        _, vectors = jax.lax.scan(body, None, (jnp.arange(self.num_chunks), *split))
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), vectors)

    def evaluate(self, model: Any, params: Any, batch: Batch, frozen: Any) -> Mapping[str, Any]:
        """Computes the vectors of documents, or of queries if the batch has `is_query`."""
        return apply(model.for_queries() if "is_query" in batch else model, params, batch)


def same_texts(query_numbers_B: jax.Array, document_numbers_BxC: jax.Array) -> dict[str, jax.Array]:
    """Finds texts that are no negatives of a row i, because they are equal to texts of the row.

    Args:
      query_numbers_B, document_numbers_BxC: Each distinct text has a number.

    Returns:
      same_rows_BxB: Whether row j has the anchor or the positive of row i.
      same_queries_BxB: Whether the anchor of row j is no negative.
      same_documents_BxBxC: Whether the documents of row j are no negatives.
    """
    positive_B = document_numbers_BxC[:, 0]

    def equal(numbers: jax.Array, other_B: jax.Array) -> jax.Array:
        """Compares [B, ...] with a number of each row i: [B, B, ...]."""
        return numbers[None] == jnp.expand_dims(other_B, tuple(range(1, numbers.ndim + 1)))

    same_rows_BxB = equal(query_numbers_B, query_numbers_B) | equal(positive_B, positive_B)
    same_documents_BxBxC = equal(document_numbers_BxC, positive_B) | equal(
        document_numbers_BxC, query_numbers_B
    )
    is_positive_C = jnp.arange(document_numbers_BxC.shape[1]) == 0
    return {
        "same_queries_BxB": same_rows_BxB | equal(query_numbers_B, positive_B),
        "same_documents_BxBxC": same_documents_BxBxC | same_rows_BxB[..., None] & is_positive_C,
    }


def mnr(
    queries: Vectors,
    documents: Vectors,
    labels_B: None = None,
    *,
    similarity: str = "cosine",
    scale: float = 20.0,
    symmetric: bool = False,
    same_side: bool = False,
    is_document_BxC: jax.Array | bool = True,
    same_queries_BxB: jax.Array | bool = False,
    same_documents_BxBxC: jax.Array | bool = False,
    guide: tuple[jax.Array, jax.Array] | None = None,
) -> Metrics:
    """Cross-entropy of the positive among all documents of the batch (InfoNCE).

    Args:
      similarity: See `similarity.prepared`.
      scale: One over the temperature of the similarities.
      symmetric: Takes the mean with the cross-entropy of the anchor among all anchors, for the
        positive. Only for one vector of a text.
      same_side: Compares anchors with anchors too, and positives with all anchors and documents, in
        a single sum (Li et al. 2023). Only for one vector of a text.
      same_queries_BxB, same_documents_BxBxC: See `same_texts`.
      guide: Vectors of unit length of another model, [B, G] and [B, C, G]. What it finds more
        similar than the positive to its anchor is no negative of the row (Solatorio 2024).

    Returns:
      The loss, and the fraction of rows whose positive is nearer than all other documents.
    """
    queries, documents = prepared(queries, documents, similarity)
    positives = jax.tree.map(lambda x: x[:, :1], documents)
    rows, choices = jax.tree.leaves(documents)[0].shape[:2]
    # A row of products: the diagonal of the matrix would be gathered from all devices.
    own_B = scale * own_scores(queries, positives)[:, 0]
    is_own_BxB = jnp.arange(rows)[:, None] == jnp.arange(rows)
    is_positive_BxBxC = is_own_BxB[..., None] & (jnp.arange(choices) == 0)

    guide_queries, guide_documents = guide or (None, None)
    guide_positives = None if guide is None else guide_documents[:, 0]

    def guided_out(similarity: jax.Array) -> jax.Array:
        """Compares similarities of the guide, [B, ...], with that of the positive of each row."""
        own_B = jnp.sum(guide_queries * guide_positives, axis=-1)
        return similarity > jnp.expand_dims(own_B, tuple(range(1, similarity.ndim)))

    def with_queries(x_BxD: jax.Array, guide_BxG: jax.Array | None) -> jax.Array:
        excluded_BxB = is_own_BxB | same_queries_BxB
        if guide_BxG is not None:
            excluded_BxB |= guided_out(products("id,jd->ij", guide_BxG, guide_queries))
        logits_BxB = scale * products("id,jd->ij", x_BxD, queries)
        return jnp.where(excluded_BxB, EXCLUDED, logits_BxB)

    def with_documents(
        x: Vectors, guide_BxG: jax.Array | None, excluded_BxBxC: jax.Array
    ) -> jax.Array:
        excluded_BxBxC |= same_documents_BxBxC | jnp.logical_not(is_document_BxC)
        if guide_BxG is not None:
            excluded_BxBxC |= guided_out(all_scores(guide_BxG, guide_documents))
        logits_BxBxC = scale * all_scores(x, documents)
        return jnp.where(excluded_BxBxC, EXCLUDED, logits_BxBxC)

    negatives_BxBxC = with_documents(queries, guide_queries, is_positive_BxBxC)
    to_documents_B = jax.nn.logsumexp(negatives_BxBxC, axis=(1, 2))
    total_B = jnp.logaddexp(own_B, to_documents_B)
    if symmetric or same_side:
        positives_BxD = positives[:, 0]
        # The positive and the other anchors.
        to_queries_B = jax.nn.logsumexp(with_queries(positives_BxD, guide_positives), axis=1)
        to_queries_B = jnp.logaddexp(own_B, to_queries_B)
    if same_side:
        of_queries_B = jax.nn.logsumexp(with_queries(queries, guide_queries), axis=1)
        own_rows_BxBxC = jnp.broadcast_to(is_own_BxB[..., None], negatives_BxBxC.shape)
        of_documents_B = jax.nn.logsumexp(
            with_documents(positives_BxD, guide_positives, own_rows_BxBxC), axis=(1, 2)
        )
        totals = jnp.stack([total_B, to_queries_B, of_queries_B, of_documents_B])
        total_B = jax.nn.logsumexp(totals, axis=0)
    elif symmetric:
        total_B = (total_B + to_queries_B) / 2
    nearest_B = jnp.max(negatives_BxBxC, axis=(1, 2))
    return {
        "loss": jnp.mean(total_B - own_B),
        "accuracy": jnp.mean((own_B > nearest_B).astype(jnp.float32)),
    }


def cosine_of(first_BxD: jax.Array, second_BxD: jax.Array) -> jax.Array:
    """Computes the cosine similarity of each pair, [B]."""
    return jnp.sum(unit(first_BxD) * unit(second_BxD), axis=-1)


def angle_of(first_BxD: jax.Array, second_BxD: jax.Array) -> jax.Array:
    """Computes the angle in the complex plane of each pair, [B] (Li and Li 2024).

    The first half of a vector holds the real parts, the second half the imaginary ones.
    """
    padding = [(0, 0), (0, first_BxD.shape[-1] % 2)]
    first, second = (jnp.pad(unit(x), padding) for x in (first_BxD, second_BxD))
    (real, imaginary), (other_real, other_imaginary) = (
        jnp.split(x, 2, axis=-1) for x in (first, second)
    )
    sine_B = jnp.sum(imaginary * other_real - real * other_imaginary, axis=-1)
    return jnp.abs(jnp.sum(first * second, axis=-1) + sine_B)


def ranked_pairs(similarity: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., Metrics]:
    """Makes a loss: each pair should be more similar than all pairs with a lower label."""

    def loss(queries_BxD, documents_BxCxD, labels_B, *, scale: float = 20.0) -> Metrics:
        similarity_B = scale * similarity(queries_BxD, documents_BxCxD[:, 0])
        differences_BxB = similarity_B[:, None] - similarity_B
        is_lower_BxB = labels_B[:, None] < labels_B
        log_sum = jax.nn.logsumexp(jnp.where(is_lower_BxB, differences_BxB, EXCLUDED))
        return {"loss": jnp.logaddexp(0.0, log_sum)}

    return loss


def cosine(queries_BxD: jax.Array, documents_BxCxD: jax.Array, labels_B: jax.Array) -> Metrics:
    """Squared error of the cosine similarity."""
    similarity_B = cosine_of(queries_BxD, documents_BxCxD[:, 0])
    return {"loss": jnp.mean((similarity_B - labels_B) ** 2)}


def contrastive(
    queries_BxD: jax.Array, documents_BxCxD: jax.Array, labels_B: jax.Array, *, margin: float = 0.5
) -> Metrics:
    """Pulls pairs with label 1 together; pushes those with label 0 apart, up to a distance."""
    distance_B = 1 - cosine_of(queries_BxD, documents_BxCxD[:, 0])
    apart_B = jnp.maximum(margin - distance_B, 0) ** 2
    return {"loss": jnp.mean(labels_B * distance_B**2 + (1 - labels_B) * apart_B) / 2}


def triplet(
    queries_BxD: jax.Array,
    documents_BxCxD: jax.Array,
    labels_B: None = None,
    *,
    margin: float = 5.0,
    is_document_BxC: jax.Array | bool = True,
) -> Metrics:
    """The positive should be nearer than each negative by a margin, in Euclidean distance."""
    squares_BxC = jnp.sum((queries_BxD[:, None] - documents_BxCxD) ** 2, axis=-1)
    distance_BxC = jnp.sqrt(jnp.maximum(squares_BxC, SMALLEST_SQUARE))
    losses_BxN = jnp.maximum(distance_BxC[:, :1] - distance_BxC[:, 1:] + margin, 0)
    is_document_BxC = jnp.broadcast_to(is_document_BxC, distance_BxC.shape)
    return {"loss": jnp.mean(losses_BxN, where=is_document_BxC[:, 1:])}


def margin_mse(
    queries: Vectors,
    documents: Vectors,
    scores_BxC: jax.Array,
    *,
    similarity: str = "dot",
    is_document_BxC: jax.Array | bool = True,
) -> Metrics:
    """Squared error of how much better the positive is than each negative, for a teacher's scores.

    Args:
      scores_BxC: The scores of a teacher (Hofstätter et al. 2020).
      similarity: See `similarity.prepared`.
    """
    similarity_BxC = own_scores(*prepared(queries, documents, similarity))
    is_document_BxC = jnp.broadcast_to(is_document_BxC, scores_BxC.shape)
    terms_BxC, counts_BxC = ranking.margin_mse(similarity_BxC, scores_BxC, is_document_BxC)
    return {"loss": jnp.mean(terms_BxC, where=counts_BxC)}


def kl(
    queries: Vectors,
    documents: Vectors,
    scores_BxC: jax.Array,
    *,
    similarity: str = "dot",
    temperature: float = 1.0,
    teacher_temperature: float = 1.0,
    is_document_BxC: jax.Array | bool = True,
) -> Metrics:
    """Divergence of the distribution over the documents of a row from a teacher's.

    Args:
      scores_BxC, similarity: See `margin_mse`.
      temperature: Divides the similarities. The loss is multiplied by its square.
      teacher_temperature: Divides the scores.
    """
    similarity_BxC = own_scores(*prepared(queries, documents, similarity))
    log_probs_BxC, wanted_BxC = (
        jax.nn.log_softmax(jnp.where(is_document_BxC, x_BxC / divisor, EXCLUDED))
        for x_BxC, divisor in ((similarity_BxC, temperature), (scores_BxC, teacher_temperature))
    )
    divergence_B = jnp.sum(jnp.exp(wanted_BxC) * (wanted_BxC - log_probs_BxC), axis=1)
    return {"loss": temperature**2 * jnp.mean(divergence_B)}


def softmax(logits_BxK: jax.Array, labels_B: jax.Array) -> Metrics:
    """Cross-entropy of the class of a pair; see `EmbeddingModel.classify`."""
    log_probs_BxK = jax.nn.log_softmax(logits_BxK)
    is_right_B = jnp.argmax(logits_BxK, axis=-1) == labels_B
    return {
        "loss": -jnp.mean(jnp.take_along_axis(log_probs_BxK, labels_B[:, None], axis=1)),
        "accuracy": jnp.mean(is_right_B.astype(jnp.float32)),
    }


# Functions of the vectors of queries and documents, labels_B or scores_BxC, and the options that
# they name. The loss "softmax" has a layer of the model.
_OF_PAIRS: dict[str, Callable[..., Metrics]] = {
    "cosent": ranked_pairs(cosine_of),
    "angle": ranked_pairs(angle_of),
    "cosine": cosine,
    "contrastive": contrastive,
}
# Those of the similarities of an anchor and its documents.
_OF_SCORES: dict[str, Callable[..., Metrics]] = {"mnr": mnr, "margin_mse": margin_mse, "kl": kl}
_OF_DOCUMENTS: dict[str, Callable[..., Metrics]] = _OF_SCORES | {"triplet": triplet}
LOSSES = _OF_PAIRS | _OF_DOCUMENTS
