"""The Python API, against recorded and separately computed values."""

import dataclasses
import math
import multiprocessing
import operator
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.inference import encoding
from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import embed
from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from tests.golden.inputs import read_golden, real_package
from tests.interop import small_bert
from tests.interop.small_bert import TOKENS, copies

make_pretrained = partial(small_bert.make_pretrained, num_hidden_layers=2)
# The sentences for which benchmarks/golden/models.py recorded MiniLM's states.
SENTENCES = [
    "BERT reads both sides.",
    ("The man went to the store.", "He bought a gallon of milk, didn't he?"),
    "Café prices rose 4.5 % in 2019.",
]


@pytest.fixture(scope="module")
def bert():
    return Bert(make_pretrained())


@pytest.fixture(scope="module")
def reference():
    """A function that computes the bare model's hidden states and logits for one row."""
    pretrained = make_pretrained()
    config = pretrained.model_config
    model = PreTrainingModel(config, make_terms())
    params = {"params": unflatten(pretrained.weights, config)}

    apply = partial(jax.jit(model.apply, static_argnames="deterministic"), params)

    def run(ids, num_first=None):
        ids_BxL = jnp.array([ids])
        positions_L = jnp.arange(len(ids))
        batch = {
            "input_ids": ids_BxL,
            "token_type_ids": (positions_L >= (num_first or len(ids))).astype(jnp.int32)[None],
            "attention_mask": jnp.ones_like(ids_BxL),
            "masked_lm_positions": positions_L[None],
        }
        outputs = apply(batch, deterministic=True)
        return outputs | {"mlm": outputs["mlm"][..., : config.vocab_size]}

    return run


def without_heads(*heads):
    pretrained = make_pretrained()
    pretrained.weights = {n: x for n, x in pretrained.weights.items() if not n.startswith(heads)}
    return Bert(pretrained)


def ids_of(text):
    return [TOKENS.index(token) for token in text.split()]


def test_hidden_states_match_torch():
    golden = read_golden("real_minilm")
    bert = bert_jax.load(real_package("minilm"))
    states = bert.encode(SENTENCES, pooling="tokens", layers=range(7))
    compared = 0
    for row, x in enumerate(states):
        length = golden["batch/attention_mask"][row].sum()
        assert x.shape == (length, 7, 384)
        for i, (r, column) in enumerate(golden["at"]):
            if r == row and column < length:
                np.testing.assert_allclose(x[column], golden["hidden_states"][:, i], atol=2e-5)
                compared += 1
    assert compared >= 12
    # The directory is one of sentence-transformers.
    assert bert.embedding[:3] == ("mean", True, 256)
    for found, x in zip(bert.encode(SENTENCES), states, strict=True):
        mean = x[:, -1].mean(0)
        np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-5)


def test_fill_mask_is_the_softmax_of_the_head(bert, reference):
    guesses = bert.fill_mask("a [MASK] the", "[MASK] b", top_k=len(TOKENS))
    ids = [2, *ids_of("a [MASK] the [SEP] [MASK] b [SEP]")]
    logits_LxV = reference(ids, num_first=5)["mlm"][0]
    assert len(guesses) == 2
    for mask, position in zip(guesses, (2, 5), strict=True):
        expected_V = jax.nn.softmax(logits_LxV[position])
        assert [guess.token for guess in mask] == [TOKENS[i] for i in np.argsort(-expected_V)]
        np.testing.assert_allclose(
            [guess.probability for guess in mask], np.sort(expected_V)[::-1], atol=1e-5
        )
        assert math.isclose(sum(guess.probability for guess in mask), 1, abs_tol=1e-4)
    # Texts with other numbers of masks in the same batch.
    several = bert.fill_mask(["the [MASK]", ("a [MASK] the", "[MASK] b"), "[MASK]"], top_k=2)
    assert [len(masks) for masks in several] == [1, 2, 1]
    for mask, expected in zip(several[1], guesses, strict=True):
        assert [guess.token for guess in mask] == [guess.token for guess in expected[:2]]
    with pytest.raises(UserError, match="'c' has no .MASK."):
        bert.fill_mask(["[MASK]", "c"])


def test_next_sentence_is_the_softmax_of_the_head(bert, reference):
    ids = [2, *ids_of("a b [SEP] c [SEP]")]
    expected_2 = jax.nn.softmax(reference(ids, num_first=4)["nsp"][0])
    assert math.isclose(bert.next_sentence("a b", "c"), expected_2[0], abs_tol=1e-5)
    several = bert.next_sentence([("d", "a"), ("a b", "c")])
    assert len(several) == 2 and math.isclose(several[1], expected_2[0], abs_tol=1e-5)


def test_a_score_masks_each_token_in_turn(bert, reference):
    text = "a b the ##ing c".replace(" ##", "")
    tokens = "a b the ##ing c".split()
    expected = []
    for i in range(len(tokens)):
        ids = [2, *ids_of(" ".join(tokens)), 3]
        label, ids[i + 1] = ids[i + 1], 4
        logits_V = reference(ids)["mlm"][0, i + 1]
        expected.append(float(jax.nn.log_softmax(logits_V)[label]))
    score = bert.score(text)
    assert score.tokens == tokens
    np.testing.assert_allclose(score.log_probs, expected, atol=1e-4)
    assert math.isclose(score.log_likelihood, sum(expected), abs_tol=1e-3)
    assert math.isclose(score.perplexity, math.exp(-sum(expected) / 5), rel_tol=1e-3)
    assert [each.tokens for each in bert.score(["a b", text])] == [["a", "b"], tokens]


def test_attention_is_the_softmax_of_queries_and_keys(bert):
    weights, config = make_pretrained().weights, make_pretrained().model_config
    view = bert.attention("a b", "the [MASK] c")
    assert view.tokens == "[CLS] a b [SEP] the [MASK] c [SEP]".split()
    assert view.num_first == 4
    assert view.guesses == {5: bert.fill_mask("a b", "the [MASK] c")[0]}
    ids = [2, *ids_of("a b [SEP] the [MASK] c [SEP]")]
    inputs = jnp.array([ids]), jnp.array([[0, 0, 0, 0, 1, 1, 1, 1]]), jnp.ones((1, 8))
    states = jax.jit(
        lambda params: PreTrainingModel(config, make_terms()).apply(
            params, method=lambda model: model.bert.hidden_states(*inputs, deterministic=True)
        )
    )({"params": unflatten(weights, config)})
    assert len(states) == config.num_hidden_layers + 1
    for layer in range(config.num_hidden_layers):
        prefix = f"bert/encoder/layer_{layer}/attention"
        query, key = (
            np.einsum("LD,DAK->ALK", states[layer][0], weights[f"{prefix}/{name}_kernel"])
            + weights[f"{prefix}/{name}_bias"][:, None]
            for name in ("query", "key")
        )
        scores = np.einsum("AQK,AIK->AQI", query, key) / math.sqrt(config.head_depth)
        expected = np.exp(scores - scores.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(view.probabilities_NxAxLxL[layer], expected, atol=1e-4)


def test_encode_does_not_depend_on_the_other_texts(bert):
    texts = [" ".join("abcdefghij"[i % 10] for i in range(n)) for n in (3, 1, 17)]
    together = bert.encode(texts, pooling="mean", layers=[1, -1])
    assert together.shape == (3, 2, 12)
    for text, x in zip(texts, together, strict=True):
        np.testing.assert_allclose(bert.encode([text], layers=[1, -1])[0], x, atol=1e-5)
    np.testing.assert_array_equal(bert.encode(text), bert.encode([text])[0])
    np.testing.assert_array_equal(bert.encode(texts, layers=np.int8(2)), bert.encode(iter(texts)))
    assert bert.encode([]).shape == (0, 12)


def test_equal_texts_have_equal_vectors(bert):
    """A batch of another shape gives other last bits."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([*"abcdefghij"], n)) for n in rng.integers(1, 30, 300)]
    texts += texts[::7]
    rows, counted = bert.embedding_rows(texts, bert.embedding), []
    for found in (bert.encode(texts), embed(bert, rows, bert.embedding, counted.append)):
        np.testing.assert_array_equal(found[300:], found[:300:7])
    assert sum(counted) == len(texts)
    assert len({x.tobytes() for x in bert.encode(["a b", ("a", "b")])}) == 2


def test_search_finds_the_most_similar_vectors_in_chunks(monkeypatch, tmp_path):
    rng, bert = np.random.default_rng(0), Bert(make_pretrained())
    corpus = rng.standard_normal((50, 12)).astype(np.float32)
    corpus[17] = corpus[31] = corpus[5]
    queries = np.concatenate([rng.standard_normal((6, 12)).astype(np.float32), corpus[5:6]])
    np.save(tmp_path / "corpus.npy", corpus)
    monkeypatch.setattr(encoding, "_SEARCH_QUERIES", 3)
    monkeypatch.setattr(encoding, "_SEARCH_ROWS", 8)
    for kind in ("cosine", "dot", "euclidean", "manhattan"):
        bert.embedding = bert.embedding._replace(similarity=kind)
        similarity = bert.similarity(queries, corpus)
        assert similarity.shape == (7, 50)
        np.testing.assert_allclose(bert.similarity(queries[3], corpus)[0], similarity[3], atol=1e-5)
        found = bert.search(queries, np.load(tmp_path / "corpus.npy", mmap_mode="r"), 4)
        expected = np.argsort(-similarity, axis=1, kind="stable")[:, :4]
        assert [[each["corpus_id"] for each in row] for row in found] == expected.tolist()
        scores = [[each["score"] for each in row] for row in found]
        np.testing.assert_allclose(scores, np.take_along_axis(similarity, expected, 1), atol=1e-5)
        if kind != "dot":
            assert [each["corpus_id"] for each in found[6][:3]] == [5, 17, 31]
        (only,) = bert.search(queries[3], corpus, top_k=4)
        assert [each["corpus_id"] for each in only] == expected[3].tolist()
    assert len(bert.search(queries, corpus[:2])[0]) == 2
    with pytest.raises(TypeError, match="float"):
        bert.search(queries, corpus, top_k=5.0)
    assert len(bert.search(queries, corpus, top_k=5)[0]) == 5
    assert bert.search(queries, corpus[:0]) == [[]] * 7 and bert.search(queries[:0], corpus) == []


@pytest.mark.parametrize(
    "texts, words",
    [
        (None, "the text is None; it must be a string or a list of strings"),
        (5, "the text is 5;"),
        (b"ab", "the text is b'ab';"),
        ({"text": "a"}, "the text is {'text': 'a'};"),
        (["a", None], "text 1 is None; it must be a string"),
        (["a", 1.5, "b"], "text 1 is 1.5;"),
        ([{"text": "a"}], "text 0 is {'text': 'a'};"),
        (["a", ("a", None)], r"text 1 is \('a', None\);"),
        (["a", ("a", "b", "c")], r"text 1 is \('a', 'b', 'c'\);"),
    ],
)
def test_what_is_no_text_is_refused_with_its_position(bert, texts, words):
    methods = "fill_mask", "next_sentence", "score", "encode", "encode_query", "attention"
    for method in methods:
        with pytest.raises(UserError, match=f"^{words}"):
            getattr(bert, method)(texts)


def test_texts_and_their_second_ones_must_be_as_many(bert):
    for texts, others in ((["a", "b"], ["c"]), (["a"], "b"), (["a", "b"], "cd")):
        with pytest.raises(UserError, match="first texts, but . second ones"):
            bert.next_sentence(texts, others)
    with pytest.raises(UserError, match="attention takes one text or pair, not a list of 2"):
        bert.attention(["a", "b"])
    with pytest.raises(UserError, match="text 1 is .'b', None.;"):
        bert.next_sentence(["a", "b"], ["c", None])


def test_another_process_computes_the_same_vectors(bert):
    texts = ["a b c", ("d", "e"), "the"]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(operator.methodcaller("encode", texts), bert).result()
    np.testing.assert_array_equal(found, bert.encode(texts))


def test_a_long_text_is_cut_off_with_a_warning(bert):
    long = "a b c d e f g h i j " * 10
    with pytest.warns(UserWarning, match="the text is truncated to 40 tokens"):
        cut = bert.encode([long], pooling="tokens")[0]
    assert cut.shape == (40, 12)
    with pytest.warns(UserWarning, match="1 of 2 texts are truncated to 6 tokens"):
        bert.encode([long, "a"], max_length=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bert.encode(["a b"])


def test_text_that_the_vocabulary_does_not_know(bert):
    with pytest.warns(UserWarning, match="60% of the tokens are unknown to the vocabulary of"):
        bert.encode(["a ж", "ж ж a"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bert.encode(["a b ж", "b"])


@pytest.mark.parametrize(("num_tokens", "starts"), [(6, [0]), (7, [0, 4]), (11, [0, 4, 8])])
def test_a_stride_averages_the_windows_of_a_long_text(bert, num_tokens, starts):
    words = [*"abcdefghij", "a"][:num_tokens]
    windows = [" ".join(words[start : start + 6]) for start in starts]
    for options in ({"pooling": "cls", "layers": [1, -1]}, {"pooling": "mean"}):
        expected = bert.encode(windows, max_length=8, **options).mean(0)
        found = bert.encode([" ".join(words)], max_length=8, stride=4, **options)
        np.testing.assert_allclose(found[0], expected, atol=1e-5)
    unit = bert.encode([" ".join(words)], max_length=8, stride=4, normalize=True)
    np.testing.assert_allclose(unit[0], expected / np.linalg.norm(expected), atol=1e-5)


def test_max_length_covers_only_stages_that_have_begun():
    pretrained = make_pretrained()
    config = bert_jax.config.default_config()
    config.model.update(pretrained.model)
    config.train.num_steps = 100
    config.train.stages = (
        bert_jax.config.stage(fraction=0.9, max_seq_length=16, max_predictions_per_seq=2),
        bert_jax.config.stage(fraction=0.1, max_seq_length=32, max_predictions_per_seq=4),
    )
    values = bert_jax.config.to_dict(config)
    for step, expected in ((1, 16), (90, 16), (91, 32), (100, 32)):
        pretrained.training = {"step": step, "config": values}
        assert pretrained.max_length == expected
    pretrained.training["config"] = values | {"init_from": "elsewhere"}
    assert pretrained.max_length == 40
    for step, expected in ((0, 24), (90, 24), (91, 32)):
        pretrained.training |= {"step": step, "initial_max_length": 24}
        assert pretrained.max_length == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda b: b.fill_mask("a b"), r"has no \[MASK\]"),
        (lambda b: b.next_sentence("a", None), "takes two sentences"),
        (lambda b: b.encode(["a"], pooling="max"), "cls, mean, tokens"),
        (lambda b: b.encode(["a"], layers=3), r"layers is \[3\]; .* 0 \(embeddings\) to 2"),
        (lambda b: b.encode(["a"], max_length=41), "from 5 to 40"),
        (lambda b: b.encode(["a"], stride=39), "stride is 39; it must be from 1 to 38"),
        (lambda b: b.encode([("a", "b")], stride=3), "splits only single texts, but there is a"),
    ],
)
def test_mistakes(bert, call, words):
    with pytest.raises(UserError, match=words):
        call(bert)


def test_a_mask_that_is_cut_off(bert):
    with (
        pytest.warns(UserWarning, match="truncated to"),
        pytest.raises(UserError, match=r"1 \[MASK\] in it would be cut off"),
    ):
        bert.fill_mask("[MASK] " + "a " * 50 + "[MASK]")
    with pytest.warns(UserWarning, match=r"no predictions for 1 \[MASK\]: beyond the maximum"):
        assert len(bert.attention("[MASK] " + "a " * 50 + "[MASK]").guesses) == 1


def test_model_without_heads_gives_features_and_attention():
    bare = without_heads("bert/pooler", "mlm", "nsp")
    of_heads = "fill_mask", "score", "next_sentence", "detect", "classify", "tag", "entities"
    assert not any(hasattr(bare, name) for name in of_heads)
    with pytest.raises(UserError, match="a test has no task head"):
        bare.classify("a")
    with pytest.raises(AttributeError, match="Bert has no attribute nonsense"):
        bare.nonsense  # noqa: B018
    assert np.isfinite(bare.encode(["a b"])).all()
    with pytest.warns(UserWarning, match=r"no predictions for 1 \[MASK\]: .* no masked-LM head"):
        assert bare.attention("a [MASK]").guesses == {}
    for call, head in (
        (lambda: bare.fill_mask("a [MASK]"), "masked-LM head"),
        (lambda: bare.score("a"), "masked-LM head"),
        (lambda: bare.next_sentence("a", "b"), "pooler"),
        (lambda: without_heads("nsp").next_sentence("a", "b"), "next-sentence head"),
    ):
        with pytest.raises(UserError, match=f"a test has no {head}"):
            call()


def test_untrained_head_is_refused(tmp_path):
    pretrained = make_pretrained()
    pretrained.weights = {n: x for n, x in pretrained.weights.items() if not n.startswith("mlm/")}
    pretrained.complete()
    formats.write(pretrained, tmp_path / "native", "bert_jax")
    bert = bert_jax.load(tmp_path / "native")
    with pytest.raises(UserError, match="masked-LM head of .* never trained"):
        bert.fill_mask("a [MASK]")
    assert 0 <= bert.next_sentence("a", "b") <= 1


def test_padding_of_the_vocabulary_is_never_predicted(bert):
    pretrained = make_pretrained()
    pretrained.model["vocab_size"] = 32
    weights = copies(pretrained.weights)
    for name in ("bert/embeddings/word_embeddings", "mlm/output_bias"):
        extra = [(0, 4)] + [(0, 0)] * (weights[name].ndim - 1)
        weights[name] = np.pad(weights[name], extra, constant_values=9)
    padded = Bert(dataclasses.replace(pretrained, weights=weights))
    assert padded.fill_mask("a [MASK]", top_k=28) == bert.fill_mask("a [MASK]", top_k=28)


def test_weights_that_give_nan_are_refused():
    pretrained = make_pretrained()
    pretrained.weights["bert/encoder/layer_1/output/bias"][3] = np.nan
    bert = Bert(pretrained)
    assert np.isfinite(bert.encode(["a b"], layers=1)).all()
    with pytest.raises(UserError, match="a test computes NaN"):
        bert.encode(["a b"])


def test_pairs_need_two_token_types_or_none():
    bert = Bert(make_pretrained(type_vocab_size=1))
    assert bert.encode(["a"]).shape == (1, 12)
    with pytest.raises(UserError, match="a single token type"):
        bert.encode([("a", "b")])
    # DistilBERT has no token types: [SEP] separates its pairs.
    assert Bert(make_pretrained(type_vocab_size=0)).encode([("a", "b")]).shape == (1, 12)
