"""Models with sparse vectors, and with several vectors for each text, in memory."""

import json
from functools import partial

import jax
import numpy as np
import pytest
from scipy import sparse

from bert_jax.base.errors import UserError
from bert_jax.inference import features
from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import score_pairs, score_retrieval
from bert_jax.inference.guide import GuidedRows
from bert_jax.inference.mining import Rules, mine
from bert_jax.interop.embedding import Embedding
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.terms import make_terms
from bert_jax.tasks.retrieval import make_retrieval, retrieval_scores
from tests.inference.kinds import PROMPTS, make_multi_vector, make_sparse

TEXTS = ["a b c", "head", "the bad cab . j", "", "a b c", "j i h g f e d c b a " * 3]
KINDS = {"sparse": make_sparse, "multi_vector": make_multi_vector}


@pytest.fixture(scope="module")
def splade():
    return Bert(make_sparse())


@pytest.fixture(scope="module")
def colbert():
    return Bert(make_multi_vector(PROMPTS))


def dense(made):
    """Returns the same model without its kind."""
    made.embedding = Embedding()
    return Bert(made)


@pytest.mark.parametrize(("pooling", "double_log"), [("max", False), ("sum", True)])
def test_weights_are_those_of_the_masked_lm_head(pooling, double_log):
    bert = Bert(make_sparse(pooling=pooling, double_log=double_log))
    model = PreTrainingModel(bert.config, make_terms(("masked_lm",)))
    found = bert.encode(TEXTS)
    assert found.format == "csr" and found.dtype == np.float32
    assert 0 < found.nnz < 0.9 * found.shape[0] * found.shape[1]
    rows = bert.rows(TEXTS)
    lengths = [len(row.input_ids_L) for row in rows]
    ids_NxL = np.stack([np.resize(row.input_ids_L, max(lengths)) for row in rows])
    is_token_NxL = np.arange(max(lengths)) < np.array(lengths)[:, None]
    batch = {
        "input_ids": ids_NxL,
        "token_type_ids": 0 * ids_NxL,
        "attention_mask": is_token_NxL.astype(np.int32),
        "masked_lm_positions": np.tile(np.arange(max(lengths)), (len(rows), 1)),
    }
    (logits_NxLxV,) = jax.jit(partial(apply, model))(bert.params, batch).values()
    for length, all_LxV, weights_V in zip(lengths, logits_NxLxV, found.toarray(), strict=True):
        logits_LxV = all_LxV[:length, : len(weights_V)]
        expected_LxV = np.log1p(np.maximum(logits_LxV, 0))
        expected_LxV = np.log1p(expected_LxV) if double_log else expected_LxV
        expected_V = expected_LxV.max(0) if pooling == "max" else expected_LxV.sum(0)
        np.testing.assert_allclose(weights_V, expected_V, atol=5e-5)


def test_sparse_vectors_do_not_depend_on_the_batch(splade):
    found = splade.encode(TEXTS).toarray()
    assert (found[0] == found[4]).all()
    for text, expected_V in zip(TEXTS, found, strict=True):
        alone = splade.encode(text)
        assert alone.shape == (1, 28)
        np.testing.assert_allclose(alone.toarray()[0], expected_V, atol=5e-5)
    assert splade.encode([]).shape == (0, 28)


def test_tokens_and_their_weights(splade, colbert):
    vectors = splade.encode(TEXTS[:2])
    for found, weights_V in zip(splade.decode(vectors), vectors.toarray(), strict=True):
        ranked = np.argsort(-weights_V, kind="stable")[: np.sum(weights_V > 0)]
        assert [splade.tokenizer.tokens.index(token) for token, _ in found] == ranked.tolist()
        np.testing.assert_array_equal([weight for _, weight in found], weights_V[ranked])
    assert splade.decode(vectors, top_k=3) == [x[:3] for x in splade.decode(vectors)]
    with pytest.raises(UserError, match="decode is for sparse vectors, but .* multi-vector model"):
        colbert.decode(colbert.encode(TEXTS))


def test_static_queries_have_the_weights_of_a_table():
    """Each token once, without special tokens, and without the encoder."""
    made = make_sparse(PROMPTS, static_queries=True)
    bert = Bert(made)
    documents = bert.encode_document(TEXTS)
    made.weights["bert/encoder/layer_0/output/bias"][:] = np.nan
    found = Bert(made).encode_query(["a cab a . ?"])
    ids = {
        token: bert.tokenizer.tokens.index(token) for token in ("the", "a", "c", "##a", "##b", ".")
    }
    ids["[UNK]"] = bert.tokenizer.unk_id
    expected = {token: pytest.approx(i / 8) for token, i in ids.items()}
    assert dict(bert.decode(found)[0]) == expected
    np.testing.assert_allclose(
        documents.toarray(), Bert(make_sparse(PROMPTS)).encode_document(TEXTS).toarray(), atol=1e-6
    )


def test_documents_have_the_projected_states_of_their_tokens(colbert):
    made = make_multi_vector()
    projection_DxW = made.weights["projection/kernel"]
    prompted = [f"b {text}" for text in TEXTS]
    states = dense(made).encode(prompted, pooling="tokens")
    found = colbert.encode_document(TEXTS)
    point = colbert.tokenizer.tokens.index(".")
    for row, x_LxD, vectors_LxW in zip(colbert.rows(prompted), states, found, strict=True):
        expected_LxW = x_LxD[row.input_ids_L != point] @ projection_DxW
        expected_LxW /= np.linalg.norm(expected_LxW, axis=1, keepdims=True)
        assert vectors_LxW.dtype == np.float32 and vectors_LxW.base is None
        np.testing.assert_allclose(vectors_LxW, expected_LxW, atol=5e-5)
    for a, b in zip(found, colbert.encode(TEXTS), strict=True):
        np.testing.assert_array_equal(a, b)
    assert colbert.encode([]) == [] and colbert.encode("a").shape == (4, 8)


@pytest.mark.parametrize(("expansion", "lengths"), [("none", (6, 4, 10)), ("masked", (10,) * 3)])
def test_queries_have_their_own_length_prompt_and_masks(expansion, lengths):
    bert, texts = Bert(make_multi_vector(PROMPTS, expansion=expansion)), ["a b .", "j", TEXTS[-1]]
    with pytest.warns(UserWarning, match="1 of 3 texts are truncated to 10 tokens"):
        found = bert.encode_query(texts)
    # The skipped words of documents count in queries.
    assert tuple(map(len, found)) == lengths
    with pytest.warns(UserWarning):
        named = bert.encode(texts, prompt_name="query")
    plain = bert.encode_query([f"the {text}" for text in texts[:2]], prompt="")
    for n, x in [*enumerate(named), *enumerate(plain)]:
        np.testing.assert_allclose(x, found[n], atol=5e-5)
    with pytest.raises(UserError, match="prompt_name is 'x'; the prompts of a test are: query, d"):
        bert.encode_query(texts, prompt_name="x")
    assert len(bert.encode_query(texts, max_length=12)[2]) == 12


def test_similarity_and_search(splade, colbert):
    queries, documents = splade.encode_query(TEXTS[:2]), splade.encode_document(TEXTS)
    products_QxN = queries.toarray() @ documents.toarray().T
    np.testing.assert_allclose(splade.similarity(queries, documents), products_QxN, rtol=1e-5)
    several = colbert.encode_query(TEXTS[:2]), colbert.encode_document(TEXTS)
    sums_QxN = np.array([[(q @ d.T).max(1).sum() for d in several[1]] for q in several[0]])
    np.testing.assert_allclose(colbert.similarity(*several), sums_QxN, rtol=1e-5)
    one = colbert.similarity(several[0][1], several[1][2])
    np.testing.assert_allclose(one, sums_QxN[1:2, 2:3], rtol=1e-5)
    for bert, sides, expected_QxN in (
        (splade, (queries, documents), products_QxN),
        (colbert, several, sums_QxN),
    ):
        found = bert.search(*sides, top_k=3)
        order_QxN = np.argsort(-expected_QxN, axis=1, kind="stable")
        for best, order_N, expected_N in zip(found, order_QxN, expected_QxN, strict=True):
            assert [x["score"] for x in best] == pytest.approx(expected_N[order_N[:3]].tolist())
            # The first and the fifth text are equal.
            assert [x["corpus_id"] for x in best] == order_N[:3].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pooling": "mean"}, "pooling is 'mean': a {} model such as a test takes none"),
        ({"normalize": True}, "normalize is True: a {} model"),
        ({"stride": 4}, "stride is 4: a {} model"),
        ({"layers": [0, 1]}, r"layers is \[0, 1\]: a {} model"),
        ({"max_length": 41}, "max_length is 41; for a test it must be from 5 to 40"),
    ],
)
def test_settings_that_a_kind_lacks(kind, options, words):
    with pytest.raises(UserError, match=words.format(kind.replace("_", "-"))):
        Bert(KINDS[kind]()).encode(TEXTS, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_dense_vectors(kind):
    bert, pairs = Bert(KINDS[kind]()), (["a"], ["b"], np.ones(1))
    for purpose, call in (
        ("the score of pairs", lambda: score_pairs(bert, pairs, bert.embedding)),
        ("mining", lambda: next(mine(bert, [("a", ["b"])], [], Rules()))),
        ("config.embedding.guide", lambda: GuidedRows(None, bert)),
    ):
        with pytest.raises(UserError, match=f"model, but {purpose} needs a dense vector for each"):
            call()


DOCUMENTS = {"a": "the cab", "b": "a b c d", "c": "e f g", "d": "h i j", "e": "j j a", "f": "e f g"}
QUERIES = {"1": "cab", "2": "g", "3": "a c e"}
RELEVANT = {"1": {"a": 1}, "2": {"c": 1, "d": 1}, "3": {"b": 1}}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_retrieval(kind, monkeypatch):
    monkeypatch.setattr("bert_jax.inference.embeddings._CHUNK", 2)
    bert = Bert(KINDS[kind](PROMPTS))
    data, counted = make_retrieval(DOCUMENTS, QUERIES, RELEVANT), []
    found = score_retrieval(bert, data, bert.embedding_with(), counted.append)
    queries = bert.encode_query(list(QUERIES.values()))
    documents = bert.encode_document(list(DOCUMENTS.values()))
    similarity_QxN = bert.similarity(queries, documents)
    expected = retrieval_scores(data, lambda block: similarity_QxN[block])
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert sum(counted) == 3 + 5 and found["query_prompt"] == "the "
    if kind == "sparse":
        is_active_QxV, is_active_NxV = queries.toarray() > 0, documents.toarray() > 0
        dims, flops = is_active_NxV.sum(1).mean(), is_active_QxV.mean(0) @ is_active_NxV.mean(0)
        assert found["corpus_active_dims"] == pytest.approx(dims)
        assert found["corpus_sparsity_ratio"] == pytest.approx(1 - dims / 28)
        assert found["query_active_dims"] == pytest.approx(is_active_QxV.sum(1).mean())
        assert found["avg_flops"] == pytest.approx(flops)
    else:
        assert found["document_vectors"] == np.mean([len(x) for x in documents])


def test_documents_without_a_vector_come_last(capsys):
    bert = Bert(make_multi_vector(skip_words=tuple("abcdefghij") + ("[CLS]", "[SEP]", ".")))
    data = make_retrieval({"a": "a", "b": "the a"}, {"1": "a"}, {"1": {"b": 1}})
    assert score_retrieval(bert, data, bert.embedding_with())["mrr@10"] == 1
    assert "1 documents have no vector or only zeros: they come last" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 2, 4096])
def test_features_of_a_file(kind, window, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "_WINDOW_TEXTS", window)
    bert, source = Bert(KINDS[kind](PROMPTS)), tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    options = {"layers": (-1,), "embedding": bert.embedding_with()}
    for suffix in (".npz", ".jsonl"):
        count = features.write_features(bert, source, tmp_path / f"out{suffix}", **options)
        assert count == len(TEXTS)
    lines = [json.loads(line)["features"] for line in (tmp_path / "out.jsonl").open()]
    expected, found = bert.encode(TEXTS), np.load(tmp_path / "out.npz")
    if kind == "sparse":
        loaded = sparse.load_npz(tmp_path / "out.npz")
        assert loaded.shape == (len(TEXTS), 28) and loaded.format == "csr"
        assert isinstance(loaded, sparse.sparray) and loaded.dtype == np.float32
        np.testing.assert_allclose(loaded.toarray(), expected.toarray(), atol=5e-5)
        for line, pairs in zip(lines, bert.decode(expected), strict=True):
            assert list(line.items()) == [(t, pytest.approx(w, abs=5e-5)) for t, w in pairs]
    else:
        vectors, starts = found["vectors"], found["starts"]
        assert starts.dtype == np.int64 and len(starts) == len(TEXTS) + 1
        for n, expected_LxW in enumerate(expected):
            np.testing.assert_allclose(vectors[starts[n] : starts[n + 1]], expected_LxW, atol=5e-5)
            np.testing.assert_allclose(lines[n], expected_LxW, atol=5e-5)


def test_sparse_features_may_be_zeros_only(tmp_path):
    made = make_sparse()
    made.weights["mlm/output_bias"] -= 1000
    bert = Bert(made)
    (tmp_path / "texts.txt").write_text("a\nb\n")
    options = {"layers": (-1,), "embedding": bert.embedding_with()}
    features.write_features(bert, tmp_path / "texts.txt", tmp_path / "out.npz", **options)
    found = sparse.load_npz(tmp_path / "out.npz")
    assert found.shape == (2, 28) and found.nnz == 0
    assert bert.decode(found) == [[], []]
