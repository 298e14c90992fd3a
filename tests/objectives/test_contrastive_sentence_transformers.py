"""The contrastive loss beside those of sentence-transformers, around several margins."""

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
