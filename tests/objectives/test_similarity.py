"""MaxSim: the losses of sentence-transformers, blocks of documents, memory, and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.layers import unit
from bert_jax.objectives import similarity
from bert_jax.objectives.contrastive import LOSSES
from bert_jax.objectives.similarity import all_scores, own_scores, prepared
from tests.objectives.waves import assert_value_and_norms, wave

VECTORS = wave((3, 4, 8), 1), wave((3, 6, 8), 150), wave((3, 6, 8), 350)
MASKS = (
    np.array([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], bool),
    np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 1, 1, 1, 0]], bool),
    np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]], bool),
)
TEACHER = wave((3, 2), 40, 3)


@pytest.mark.parametrize(
    ("name", "kind", "options", "value", "norms"),
    [
        ("mnr", "maxsim", {"scale": 1.0}, 1.612615698303, (0.117530793, 0.104424206, 0.058977022)),
        ("mnr", "maxsim", {"scale": 1.0}, 0.913697365238, (0.125221901, 0.079528046)),
        ("mnr", "mean_maxsim", {}, 1.483451334317, (1.187153471, 1.091617261, 0.227637573)),
        ("kl", "maxsim", {}, 0.297151814385, (0.084344146, 0.055086266, 0.083910003)),
        (
            "kl",
            "maxsim",
            {"temperature": 2.0, "teacher_temperature": 0.5},
            1.798141999936,
            (0.198984925, 0.121154721, 0.193436069),
        ),
        ("margin_mse", "maxsim", {}, 4.466717748555, (1.012015815, 0.624205555, 0.997143241)),
    ],
)
def test_losses_are_those_of_sentence_transformers(name, kind, options, value, norms):
    """Version 6.2 gave these values; two norms are of pairs without negatives."""
    labels = None if name == "mnr" else TEACHER

    def loss(query, *documents):
        stacked = jnp.stack([unit(x) for x in documents], axis=1)
        masks = jnp.stack(MASKS[1 : 1 + len(documents)], axis=1)
        given = (unit(query), MASKS[0]), (stacked, masks)
        of_labels = None if labels is None else labels.astype(query.dtype)
        return LOSSES[name](*given, of_labels, similarity=kind, **options)["loss"]

    assert_value_and_norms(loss, VECTORS[: len(norms)], value, norms)


@pytest.mark.parametrize("name", ["mnr", "kl", "margin_mse"])
def test_documents_that_a_row_lacks_change_nothing(name):
    """The result is the same whether such documents have vectors or none."""
    queries, documents = pair(4, 3, 5, 6)
    is_document = np.arange(3) < np.array([[3], [2], [3], [1]])
    scores = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)

    def of(vectors, documents, is_vector):
        given = (vectors, queries[1]), (documents, is_vector)
        options = {"similarity": "maxsim", "is_document_BxC": is_document}
        return LOSSES[name](*given, None if name == "mnr" else scores, **options)["loss"]

    step = jax.jit(jax.value_and_grad(of, (0, 1)))
    value, gradients = step(queries[0], documents[0], documents[1])
    assert np.isfinite(value) and not np.asarray(gradients[1])[~is_document].any()
    without = documents[1] & is_document[..., None]
    again, others = step(queries[0], np.where(without[..., None], documents[0], 7), without)
    assert float(again) == pytest.approx(float(value), rel=1e-6)
    for one, other in zip(others, gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def pair(rows, columns, length, other, width=8, seed=0):
    """Returns queries and documents with several vectors, some of them missing."""
    rng = np.random.default_rng(seed)
    arrays = []
    for shape in ((rows, length), (rows, columns, other)):
        is_vector = rng.random(shape) < 0.7
        is_vector[..., 0] = True
        arrays.append((rng.normal(size=(*shape, width)).astype(np.float32), is_vector))
    return arrays


def written_out(queries, documents):
    """Computes MaxSim in float64 with loops; returns [B, B, C]."""
    (rows, columns), scores = documents[1].shape[:2], []
    for vectors, is_vector in zip(*queries, strict=True):
        own = vectors[is_vector].astype(np.float64)
        for i in range(rows):
            for j in range(columns):
                others = documents[0][i, j][documents[1][i, j]]
                scores.append((own @ others.T).max(axis=1).sum() if len(others) else -1e9)
    return np.reshape(scores, (len(queries[0]), rows, columns))


@pytest.mark.parametrize("block_bytes", [1, 4 * 5 * 4 * 6 * 4, 2**24])
def test_blocks_of_documents_have_the_scores_of_loops(monkeypatch, block_bytes):
    """Blocks have 1, 4 and all 15 documents. One document has no vector."""
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", block_bytes)
    queries, documents = pair(5, 3, 4, 6)
    documents[1][2, 1] = False
    expected = written_out(queries, documents)
    # Other functions than those of another size, which are compiled already.
    found = jax.jit(lambda *given: all_scores(*given))(queries, documents)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    own = jax.jit(lambda *given: own_scores(*given))(queries, documents)
    np.testing.assert_allclose(own, expected[range(5), range(5)], rtol=1e-5, atol=1e-5)
    mean = all_scores(*prepared(queries, documents, "mean_maxsim"))
    number_Bx1x1 = queries[1].sum(axis=1)[:, None, None]
    has_vector = documents[1].any(axis=-1)
    np.testing.assert_allclose(
        np.where(has_vector, mean, 0), np.where(has_vector, expected / number_Bx1x1, 0), rtol=1e-4
    )
    # The gradient is finite although a document has no vector.
    gradient = jax.grad(
        lambda x: jnp.sum(jnp.maximum(all_scores((x, queries[1]), documents), -99.0))
    )(queries[0])
    assert np.isfinite(gradient).all() and gradient.any()


def test_the_gradient_of_maxsim_needs_the_memory_of_a_block():
    """Without blocks, 64 queries of 32 tokens and 128 documents of 256 would take 768 MiB."""
    queries, documents = ((64, 32), (64, 2, 256))
    vectors = [jax.ShapeDtypeStruct((*shape, 128), jnp.float32) for shape in (queries, documents)]
    masks = [jax.ShapeDtypeStruct(shape, bool) for shape in (queries, documents)]

    def loss(queries, documents, is_query, is_document):
        given = (queries, is_query), (documents, is_document)
        return LOSSES["mnr"](*given, similarity="maxsim", scale=1.0)["loss"]

    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    compiled = step.lower(*vectors, *masks).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 70 * 2**20
    assert "f32[64,128,32,256]" not in compiled.as_text()
