"""The losses of sentence embeddings: sentence-transformers' values, chunks, devices, duplicates."""

import functools
import math
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import BertConfig
from bert_jax.models.embedding_model import EmbeddingModel
from bert_jax.objectives.contrastive import LOSSES, Contrastive, same_texts
from bert_jax.training.state import init_params
from tests import runs
from tests.golden.inputs import read_golden, section

GOLDEN = read_golden("embeddings")
GIVEN = section(GOLDEN, "inputs")
# The loss, its options, the number of documents, and the labels.
RECORDED = {
    "mnr": ("mnr", {}, 1, None),
    "mnr_scale": ("mnr", {"scale": 50.0}, 1, None),
    "mnr_negatives": ("mnr", {}, 3, None),
    "symmetric": ("mnr", {"symmetric": True}, 1, None),
    "symmetric_negatives": ("mnr", {"symmetric": True}, 3, None),
    "same_side": ("mnr", {"same_side": True}, 1, None),
    "same_side_negatives": ("mnr", {"same_side": True}, 3, None),
    "cosent": ("cosent", {}, 1, "scores"),
    "angle": ("angle", {}, 1, "scores"),
    "cosine": ("cosine", {}, 1, "scores"),
    "contrastive": ("contrastive", {}, 1, "binary"),
    "triplet": ("triplet", {}, 2, None),
    "softmax": ("softmax", {}, 1, "classes"),
    "margin_mse": ("margin_mse", {}, 3, "teacher"),
    "kl": ("kl", {}, 3, "teacher"),
    "kl_temperatures": ("kl", {"temperature": 2.0, "teacher_temperature": 0.5}, 3, "teacher"),
    "matryoshka_mnr": ("mnr", {}, 3, None),
    "matryoshka_cosent": ("cosent", {}, 1, "scores"),
}
MATRYOSHKA = {"dims": (8, 5, 2), "dim_weights": (1.0, 0.5, 2.0)}


class Given:
    """Stands for a model whose parameters are its vectors."""

    def apply(self, variables, queries, documents, method):
        features = jnp.concatenate([queries, documents, jnp.abs(queries - documents)], axis=-1)
        return features @ GIVEN["kernel"].T + GIVEN["bias"]


@pytest.mark.parametrize("name", RECORDED)
def test_values_and_gradients_are_those_of_sentence_transformers(name, monkeypatch):
    loss_name, options, num_documents, labels = RECORDED[name]
    widths = MATRYOSHKA if name.startswith("matryoshka") else {}
    similarity = "dot" if labels == "teacher" else "cosine"
    objective = Contrastive(loss_name, options, similarity, mask_duplicates=False, **widths)
    monkeypatch.setattr(Contrastive, "embed", lambda self, model, params, batch, rngs: params)
    vectors = GIVEN["queries"], GIVEN["documents"][:, :num_documents]
    batch = {} if labels is None else {"labels": GIVEN[labels]}
    batch["document_numbers"] = np.arange(6 * num_documents).reshape(6, num_documents)

    def loss(params):
        return objective.loss(Given(), params, batch, {}, 1, {}, 0)

    with jax.enable_x64(True):
        (value, metrics), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(vectors)
    expected = section(GOLDEN, name)
    assert metrics.keys() == set(objective.averaged)
    assert float(value) == pytest.approx(float(expected["loss"]), rel=1e-12)
    for found, key in zip(gradients, ("queries", "documents"), strict=True):
        np.testing.assert_allclose(found, expected[key], atol=1e-11, err_msg=key)


@pytest.mark.parametrize(
    ("name", "value", "of_queries", "of_documents"),
    [
        ("kl", 6.509392014995, 0.763134878, 1.460045250),
        ("margin_mse", 261.013316814970, 48.035878612, 91.870276935),
    ],
)
def test_distillation_of_given_waves(name, value, of_queries, of_documents):
    """DistillKLDivLoss and MarginMSELoss of sentence-transformers 6.2 gave these values."""

    def wave(shape, start):
        return 2 * np.sin(start + np.arange(math.prod(shape))).reshape(shape)

    queries, positives, negatives = (wave((4, 16), start) for start in (1, 100, 200))

    def loss(queries, positives, negatives):
        documents = jnp.stack([positives, negatives], axis=1)
        return LOSSES[name](queries, documents, wave((4, 2), 40))["loss"]

    with jax.enable_x64(True):
        found, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(
            queries, positives, negatives
        )
    assert float(found) == pytest.approx(value, rel=1e-12)
    norms = [np.linalg.norm(gradient) for gradient in gradients]
    np.testing.assert_allclose(norms, [of_queries, of_documents, of_documents], rtol=1e-9)


@pytest.mark.parametrize("name", ["mnr", "triplet", "margin_mse", "kl"])
def test_rows_with_fewer_documents_have_the_loss_of_these(name):
    """Means are over negatives, but of mnr and kl over rows."""
    queries, documents, scores = GIVEN["queries"], GIVEN["documents"], GIVEN["teacher"]
    is_mean_of_rows = name in ("mnr", "kl")
    counts = np.array([2] * 6 if is_mean_of_rows else [2, 3, 2, 3, 2, 2])
    is_document = np.arange(3) < counts[:, None]

    @jax.jit
    def loss(documents, scores, queries=queries, **options):
        return LOSSES[name](queries, documents, scores, **options)["loss"]

    with jax.enable_x64(True):
        of_whole = jax.jit(jax.value_and_grad(loss))
        value, gradient = of_whole(documents, scores, is_document_BxC=is_document)
        # What stands in the place of a document does not count.
        assert not np.any(gradient[~is_document])
        other = np.where(is_document[..., None], documents, 7.0), np.where(is_document, scores, 9.0)
        assert float(loss(*other, is_document_BxC=is_document)) == pytest.approx(float(value))
        if is_mean_of_rows:
            expected = loss(documents[:, :2], scores[:, :2])
        else:
            sums = [
                (count - 1) * loss(d[None, :count], s[None, :count], q[None])
                for q, d, s, count in zip(queries, documents, scores, counts, strict=True)
            ]
            expected = sum(sums) / np.sum(counts - 1)
        assert float(value) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize(("margin", "expected"), [(0.2, 0.073125), (0.5, 0.085), (1.0, 0.17)])
def test_pairs_inside_and_outside_the_margin_of_contrastive(margin, expected):
    """ContrastiveLoss of sentence-transformers 6.2 gave these values."""
    distance_B = np.array([0.1, 0.3, 0.5, 0.9, 0.1, 0.3, 0.5, 0.9])
    sides_B = np.sqrt(1 - (1 - distance_B) ** 2)
    queries = np.tile([2.0, 0.0], (8, 1))
    documents = np.stack([1 - distance_B, sides_B], axis=1)[:, None]
    labels = np.array([0.0, 0, 0, 0, 1, 1, 1, 1])
    with jax.enable_x64(True):
        found = jax.jit(functools.partial(LOSSES["contrastive"], margin=margin))
        assert float(found(queries, documents, labels)["loss"]) == pytest.approx(expected)


def test_equal_texts_are_no_negatives():
    """By hand: row 0 and 2 share a positive, 1 and 3 an anchor; a negative is a row's positive."""
    queries, documents = GIVEN["queries"][:4], GIVEN["documents"][:4]
    query_numbers = np.array([0, 1, 2, 1])
    document_numbers = np.array([[10, 20, 21], [11, 10, 22], [10, 23, 24], [12, 25, 1]])
    q, d = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, documents))
    losses = []
    for i in range(4):
        logits = []
        for j in range(4):
            for c in range(3):
                number, is_own = document_numbers[j, c], i == j and c == 0
                is_same = number in (document_numbers[i, 0], query_numbers[i])
                is_same |= c == 0 and query_numbers[j] == query_numbers[i]
                if is_own or not is_same:
                    logits.append(20 * q[i] @ d[j, c])
        own = 20 * q[i] @ d[i, 0]
        losses.append(np.log(np.sum(np.exp(logits))) - own)
    # 12 documents but for the positive of row 2 and a negative of row 1, and so on.
    same = same_texts(query_numbers, document_numbers)

    def loss(queries=queries, documents=documents, **options):
        return jax.jit(functools.partial(LOSSES["mnr"], **options))(queries, documents)

    with jax.enable_x64(True):
        assert float(loss(**same)["loss"]) == pytest.approx(np.mean(losses), rel=1e-12)
        order = np.array([2, 0, 3, 1])
        moved = same_texts(query_numbers[order], document_numbers[order])
        again = loss(queries[order], documents[order], **moved)
        assert float(again["loss"]) == pytest.approx(np.mean(losses), rel=1e-12)
        # Anchors that share a positive are no negatives of it, or of each other.
        for options in ({"symmetric": True}, {"same_side": True}):
            alone = {"same_queries_BxB": same["same_queries_BxB"]}
            whole, part = (loss(**options, **found)["loss"] for found in (same, alone))
            assert float(whole) < float(part)
        np.testing.assert_array_equal(
            same["same_queries_BxB"], [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
        )


def test_a_batch_of_copies_has_no_loss_and_finite_gradients():
    same = same_texts(np.zeros(3, int), np.ones((3, 1), int))
    vectors = np.ones((3, 4), np.float32), np.ones((3, 1, 4), np.float32)

    def loss(queries, documents):
        return LOSSES["mnr"](queries, documents, symmetric=True, **same)["loss"]

    def loss_of(name, queries, documents):
        return LOSSES[name](queries, documents, np.array([0.0, 1.0], np.float32))["loss"]

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*vectors)
    assert value == 0 and all(np.all(x == 0) for x in gradients)
    zeros = np.zeros((2, 4), np.float32), np.zeros((2, 2, 4), np.float32)
    for name in ("mnr", "triplet", "cosent"):
        of_zeros = jax.jit(jax.grad(functools.partial(loss_of, name)))(*zeros)
        assert np.isfinite(of_zeros).all(), name


ROWS, NEGATIVES, LENGTH, WIDTH = 16, 2, 6, 16


class Words:
    """Stands for an encoder: the vector of a text is a function of the mean of its words."""

    INPUTS = EmbeddingModel.INPUTS

    def for_queries(self):
        return self

    def apply(self, variables, batch, deterministic, rngs):
        words = (
            variables["params"]["table"][batch["input_ids"]] * batch["attention_mask"][..., None]
        )
        return {"embeddings": jnp.tanh(words.mean(1) @ variables["params"]["kernel"])}


def make_batch():
    """Returns a batch with duplicates, up to two hard negatives and the vectors of a guide."""
    rng = np.random.default_rng(0)
    shape = ROWS, 1 + NEGATIVES, LENGTH
    lengths = rng.integers(2, LENGTH + 1, shape[:2])
    batch = {
        "input_ids": rng.integers(5, 40, (ROWS, LENGTH)).astype(np.int32),
        "attention_mask": (np.arange(LENGTH) < lengths[:, :1]).astype(np.int32),
        "document_ids": rng.integers(5, 40, shape).astype(np.int32),
        "document_mask": (np.arange(LENGTH) < lengths[..., None]).astype(np.int32),
        "query_numbers": rng.integers(0, 30, ROWS).astype(np.int32),
        "document_numbers": rng.integers(0, 60, shape[:2]).astype(np.int32),
    }
    batch["document_numbers"][::4, NEGATIVES] = -1
    guide = {"guide_queries": (ROWS, 4), "guide_documents": (*shape[:2], 4)}
    drawn = ((name, rng.standard_normal(size).astype(np.float32)) for name, size in guide.items())
    return batch | {name: x / np.linalg.norm(x, axis=-1, keepdims=True) for name, x in drawn}


def make_model(name):
    """Returns `Words` ("words") or an encoder without dropout ("encoder"), and its parameters."""
    if name == "words":
        rng = np.random.default_rng(1)
        shapes = {"table": (40, WIDTH), "kernel": (WIDTH, WIDTH)}
        params = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
        return Words(), jax.tree.map(np.float32, params)
    config = BertConfig(
        vocab_size=40,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        dtype=jnp.float32,
    )
    model = EmbeddingModel(config)
    # Larger values: at the initial ones, all vectors are alike.
    return model, jax.tree.map(lambda x: 4 * x, nn.unbox(init_params(model, 0)))


def gradients(model, params, batch, num_chunks, loss_name="mnr"):
    options = {"symmetric": True} if loss_name == "mnr" else {}
    similarity = "cosine" if loss_name == "mnr" else "dot"
    objective = Contrastive(loss_name, options, similarity, num_chunks=num_chunks)
    rngs = {"dropout": jax.random.key(0), "sample": jax.random.key(1)}
    return jax.value_and_grad(lambda p: objective.loss(model, p, batch, rngs, 1, {}, 0)[0])(params)


def assert_same(found, expected):
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    for ours, theirs in zip(*map(jax.tree.leaves, (found[1], expected[1])), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=2e-6)


def on_eight_devices(name, folder):
    """Runs eight_devices.py; returns the loss and the list of gradients of each layout."""
    program = [sys.executable, "-m", "tests.objectives.eight_devices", name, str(folder)]
    done = subprocess.run(program, env=runs.environment(8), cwd=runs.ROOT, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found = {}
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as arrays:
            loss, *leaves = (arrays[f"arr_{i}"] for i in range(len(arrays)))
        found[file.stem] = loss, leaves
    return found


@pytest.mark.parametrize("loss_name", ["mnr", "margin_mse"])
def test_chunks_change_nothing_and_accumulation_would(loss_name):
    """Chunks have different numbers of negatives."""
    model, params = make_model("words")
    batch = make_batch()
    if loss_name == "margin_mse":
        shape = ROWS, 1 + NEGATIVES
        batch = {name: x for name, x in batch.items() if not name.startswith("guide")}
        batch["labels"] = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    of_loss = functools.partial(gradients, model, loss_name=loss_name)
    step = jax.jit(of_loss, static_argnums=2)
    expected = step(params, batch, 1)
    assert_same(step(params, batch, 4), expected)
    parts = [step(params, {k: x[i::4] for k, x in batch.items()}, 1) for i in range(4)]
    mean = np.mean([part[0] for part in parts])
    assert abs(mean - expected[0]) > (0.2 if loss_name == "mnr" else 0.01) * expected[0]


def test_chunks_have_dropout_of_their_own():
    class Keys(Words):
        def apply(self, variables, batch, deterministic, rngs):
            shape = len(batch["input_ids"]), 1
            return {"embeddings": jax.random.uniform(rngs["dropout"], shape)}

    rngs = {"dropout": jax.random.key(0)}
    queries, documents = Contrastive(num_chunks=4).embed(Keys(), {}, make_batch(), rngs)
    drawn = np.concatenate([np.ravel(queries), np.ravel(documents)])
    assert len(set(drawn.tolist())) == drawn.size


@pytest.mark.parametrize("name", ["words", pytest.param("encoder", marks=pytest.mark.slow)])
def test_the_negatives_are_those_of_all_devices(name, tmp_path):
    """Also hard ones. What moves between devices is as large as the vectors, not their products."""
    model, params = make_model(name)
    expected = jax.jit(functools.partial(gradients, model, num_chunks=1))(params, make_batch())
    found = on_eight_devices(name, tmp_path)
    assert [*found] == ["dp"] + ["fsdp"] * (name == "encoder")
    for result in found.values():
        assert_same(result, expected)
    text = (tmp_path / "dp.hlo").read_text()
    shapes = re.findall(r"\w+\[([\d,]*)\]\S* all-gather\(", text)
    sizes = [math.prod(map(int, re.findall(r"\d+", shape))) for shape in shapes]
    assert 0 < max(sizes) <= ROWS * (1 + NEGATIVES) * WIDTH
