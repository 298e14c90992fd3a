"""Losses beside those of sentence-transformers: margins of contrastive, and a guide's filter."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.objectives.contrastive import LOSSES

torch = pytest.importorskip("torch")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")

pytestmark = pytest.mark.outside


@pytest.mark.parametrize("margin", [0.2, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("labels", [(0, 0, 0, 1, 1, 1), (0,) * 6, (1,) * 6])
def test_values_and_gradients(margin, labels):
    """Some distances between random vectors of two values are inside each margin."""
    rng = np.random.default_rng(3)
    queries, documents = rng.standard_normal((2, 6, 2))
    labels = np.array(labels, float)
    theirs = [torch.tensor(x, requires_grad=True) for x in (queries, documents)]
    loss = losses.ContrastiveLoss(None, margin=margin)
    expected = loss.compute_loss_from_embeddings(theirs, torch.tensor(labels))
    expected.backward()

    def ours(queries, documents):
        return LOSSES["contrastive"](queries, documents[:, None], labels, margin=margin)["loss"]

    with jax.enable_x64(True):
        value, gradients = jax.value_and_grad(ours, argnums=(0, 1))(queries, documents)
    assert float(value) == pytest.approx(expected.item(), rel=1e-12)
    for found, x in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(found, x.grad.numpy(), atol=1e-12)


def test_hard_pairs_of_the_online_loss():
    """OnlineContrastiveLoss sums twice the loss over its hard pairs, all of them here."""
    distance_B = np.array([0.1, 0.3, 0.5, 0.2, 0.4, 0.6])
    queries = np.tile([1.0, 0.0], (6, 1))
    documents = np.stack([1 - distance_B, np.sqrt(1 - (1 - distance_B) ** 2)], axis=1)
    labels = np.array([0.0, 0, 0, 1, 1, 1])
    loss = losses.OnlineContrastiveLoss(None, margin=0.45)
    pair = [torch.tensor(x) for x in (queries, documents)]
    expected = float(loss.compute_loss_from_embeddings(pair, torch.tensor(labels)))
    with jax.enable_x64(True):
        found = LOSSES["contrastive"](
            jnp.asarray(queries), jnp.asarray(documents)[:, None], labels, margin=0.45
        )
    assert 2 * 6 * float(found["loss"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("num_documents", [1, 2])
def test_the_negatives_that_a_guide_leaves_out(num_documents, monkeypatch):
    """Those of GISTEmbedLoss, which reads the vectors of its two models from their columns."""
    rng = np.random.default_rng(num_documents)
    widths = {"own": 8, "guide": 5}
    queries = {name: rng.standard_normal((6, width)) for name, width in widths.items()}
    shapes = {name: (6, num_documents, width) for name, width in widths.items()}
    documents = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    theirs = [torch.tensor(x["own"], requires_grad=True) for x in (queries, documents)]
    columns = {"own": [theirs[0], *theirs[1].unbind(1)]}
    columns["guide"] = [torch.tensor(x["guide"]) for x in (queries, documents)]
    columns["guide"][1:] = columns["guide"][1].unbind(1)
    module = sys.modules[losses.GISTEmbedLoss.__module__]
    monkeypatch.setattr(module, "embed_columns", lambda model, features: columns[model])
    # Its constructor wants models.
    loss = losses.GISTEmbedLoss.__new__(losses.GISTEmbedLoss)
    torch.nn.Module.__init__(loss)
    loss.__dict__ |= {"model": "own", "guide": "guide", "must_retokenize": False}
    loss.__dict__ |= {"margin_strategy": "absolute", "margin": 0.0, "temperature": 0.05}
    loss.__dict__ |= {"contrast_anchors": False, "contrast_positives": False}
    loss.__dict__ |= {"gather_across_devices": False}
    loss.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
    loss.cross_entropy_loss = torch.nn.CrossEntropyLoss()
    expected = loss([{}] * (1 + num_documents), None)
    expected.backward()
    guide = tuple(
        x["guide"] / np.linalg.norm(x["guide"], axis=-1, keepdims=True)
        for x in (queries, documents)
    )

    def ours(queries, documents, guide):
        return LOSSES["mnr"](queries, documents, guide=guide)["loss"]

    with jax.enable_x64(True):
        given = queries["own"], documents["own"]
        value, gradients = jax.value_and_grad(ours, argnums=(0, 1))(*given, guide)
        assert float(value) == pytest.approx(expected.item(), rel=1e-12)
        assert float(value) < 0.9 * float(ours(*given, None))
    for found, x in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(found, x.grad.numpy(), atol=1e-12)
