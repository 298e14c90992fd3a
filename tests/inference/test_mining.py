"""Hard negatives: the rules, beside sentence-transformers' numbers and the library itself."""

import json
import types
from collections import Counter

import numpy as np
import pytest

from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.inference import encoding, mining
from bert_jax.inference.bert import Bert
from bert_jax.inference.finetuned import load_bert
from bert_jax.inference.mining import Rules, mine
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks.candidates import read_candidates
from bert_jax.text.bad_records import BadRecords
from tests import refusals, runs
from tests.interop.small_bert import make_finetuned, make_pretrained
from tests.tasks.test_embedding import task

WORDS = ["a", "b", "cab", "head", "bad", "the", "d", "e", "f g", "h i j"]


class FixedVectors:
    """A model whose text "q3" or "d7" has a given vector."""

    similarity, search = encoding.similarity, encoding.search
    require_dense = encoding.require_dense
    warn_about_cut = warn_about_unknown = lambda *_: None
    embedding, config, params = Embedding(), None, {}
    tokenizer = types.SimpleNamespace(fingerprint="")

    def __init__(self):
        sides = ("q", np.sin(1 + np.arange(20.0))), ("d", np.sin(50 + np.arange(48.0)))
        self.vectors = {
            f"{name}{i}": vector_D / np.linalg.norm(vector_D)
            for name, values in sides
            for i, vector_D in enumerate(values.reshape(-1, 4))
        }

    def embedding_with(self, *options):
        return self.embedding

    def width(self, embedding):
        return 4

    def layers(self, layers):
        return layers

    def embedding_rows(self, texts, embedding, warns):
        return [types.SimpleNamespace(text=text, num_cut=0) for text in texts]

    def features(self, rows, layers, embedding):
        return [self.vectors[row.text].astype(np.float32)[None] for row in rows]


PAIRS = [(f"q{i}", [f"d{j}"]) for i, j in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 5))]
CORPUS = [f"d{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "2 8 10, 6 3 9, 7 4 10, 8 5 11, 9 6 1"),
        ({"range_min": 2}, "10 7 11, 9 0 11, 10 1 5, 11 0 2, 1 3 0"),
        ({"relative_margin": 0.05}, "3 4 6, 8 4 5, 1 5 9, 6 7 9, 0 11 7"),
        (
            {"relative_margin": 0.05, "range_min": 1, "max_score": 0.5},
            "4 6 1, 4 5 7, 5 9 8, 7 9 4, 11 7 8",
        ),
        ({"absolute_margin": 0.1}, "3 4 6, 8 4 5, 5 9 8, 6 7 9, 11 7 8"),
        # The library's triplets; its tuples of three leave all but the second query out.
        ({"max_score": 0.6, "min_score": -0.2}, "7 11, 0 11 8, 1 5, 2 10, 0 11"),
    ],
    ids=str,
)
def test_the_numbers_of_sentence_transformers(rules, expected):
    found = mine(FixedVectors(), PAIRS, CORPUS, Rules(**{"num_negatives": 3} | rules))
    assert ", ".join(" ".join(row["negative"]).replace("d", "") for row in found) == expected


def test_rows_and_counts():
    counts = Counter()
    rules = Rules(num_negatives=3, max_score=0.6, min_score=-0.2)
    bert = FixedVectors()
    _, row, *_ = mine(bert, PAIRS, CORPUS, rules, counts=counts)
    similarity = {text: float(bert.vectors["q1"] @ bert.vectors[text]) for text in CORPUS}
    for side in ("positive", "negative"):
        expected = [similarity[text] for text in row[side]]
        np.testing.assert_allclose(row[f"{side}_scores"], expected, atol=1e-6)
    assert row["positive"] == ["d1"] and counts["queries with fewer than 3 negatives"] == 4
    similarities = [
        float(bert.vectors[f"q{i}"] @ bert.vectors[text])
        for i, own in enumerate(("d0 d5", "d1", "d2", "d3", "d4"))
        for text in set(CORPUS) - set(own.split())
    ]
    assert counts["candidates removed by max_score"] == sum(x > 0.6 for x in similarities)
    assert counts["candidates removed by min_score"] == sum(x < -0.2 for x in similarities)


def test_a_ranking_with_positives():
    """Those that are not among the best are at its end."""
    rows = list(mine(FixedVectors(), PAIRS, CORPUS, Rules(num_negatives=2, include_positives=True)))
    for row, (query, own) in zip(rows, {**dict(PAIRS), "q0": ["d0", "d5"]}.items(), strict=True):
        assert row["query"] == query
        assert {*own} == {
            x for x, label in zip(row["documents"], row["labels"], strict=True) if label
        }
        assert row["scores"][:2] == sorted(row["scores"], reverse=True)[:2]


def test_a_reranker_decides_without_any_limit(monkeypatch):
    """In the library it then has no effect."""
    bert, asked = FixedVectors(), []
    scores = {text: float(i) for i, text in enumerate(CORPUS)}
    reranker = types.SimpleNamespace(rerank=lambda query, documents: asked.append(query))
    monkeypatch.setattr(mining, "_QUERIES", 2)

    def pair_scores(model, pairs):
        assert model is reranker
        asked.extend(pairs := [*pairs])
        return np.array([scores[text] for _, text in pairs])

    monkeypatch.setattr(mining, "pair_scores", pair_scores)
    rules = Rules(num_negatives=3)
    first = {row["anchor"]: row for row in mine(bert, PAIRS, CORPUS, rules)}
    for row in mine(bert, PAIRS, CORPUS, rules, reranker=reranker):
        candidates = {text for query, text in asked[1:] if query == row["anchor"]}
        # n + P candidates and P more, of which P may be positives.
        assert {*first[row["anchor"]]["negative"]} <= candidates and len(candidates) <= 9
        others = sorted(candidates - {*row["positive"]}, key=scores.get, reverse=True)
        assert row["negative"] == others[:3]
        assert row["negative_scores"] == [scores[text] for text in others[:3]]
        assert row["positive_scores"] == [scores[text] for text in row["positive"]]


def test_the_query_and_its_positives_are_no_candidates_whatever_their_spaces():
    pairs = [("d6 ", ["d0\n"]), ("d6", [" d7"])]
    (row,) = mine(FixedVectors(), pairs, [f" {text}" for text in CORPUS], Rules(num_negatives=9))
    assert (row["anchor"], row["positive"]) == ("d6", ["d0", "d7"])
    assert {*row["negative"]} == {*CORPUS} - {"d0", "d6", "d7"}


def random_texts(rng, count):
    texts = (" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(count))
    return list(dict.fromkeys(texts))


def test_random_sampling_does_not_depend_on_the_order():
    rng, bert = np.random.default_rng(0), Bert(make_pretrained())
    texts, queries = random_texts(rng, 60), random_texts(rng, 20)
    pairs = [(query, [texts[i]]) for i, query in enumerate(queries)]
    options = {"num_negatives": 3, "range_max": 20, "sampling": "random"}

    def mined(pairs, texts, **rules):
        found = mine(bert, pairs, texts, Rules(**options | rules))
        # The last bits of scores depend on the texts of a batch.
        return {row["anchor"]: {*row["negative"]} for row in found}

    first = mined(pairs, texts)
    assert mined(pairs[::-1], [*texts[30:], *texts[:30], *texts]) == first
    assert mined(pairs, texts, seed=1) != first != mined(pairs, texts, sampling="top")


def test_vectors_of_an_interrupted_call_are_not_computed_again(monkeypatch, tmp_path):
    bert, computed = FixedVectors(), []
    original = bert.features
    monkeypatch.setattr(mining, "_TEXTS", 5)
    bert.features = lambda rows, *args: computed.append(len(rows)) or original(rows, *args)
    arguments = bert, PAIRS, CORPUS, Rules(num_negatives=3)
    first = list(mine(*arguments, folder=tmp_path))
    # The end of a file may be incomplete.
    largest = max(tmp_path.glob("*.f32"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-20])
    assert list(mine(*arguments, folder=tmp_path)) == first
    assert computed == [5, 5, 2, 5, 2]
    bert.params = np.ones(1)
    assert list(mine(*arguments, folder=tmp_path)) == first
    assert computed[5:] == [5, 5, 2, 5]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"num_negatives": 12}, "num_negatives is 12.* 12 different texts"),
        ({"range_min": 2, "range_max": 6}, "num_negatives is 5, with range_min 2, range_max 6"),
        ({"range_min": -1}, "range_min -1"),
        ({"num_negatives": 0}, "num_negatives is 0"),
    ],
)
def test_rules_that_are_refused(rules, words):
    with pytest.raises(UserError, match=words):
        next(mine(FixedVectors(), PAIRS, CORPUS, Rules(**rules)))


def test_scores_that_are_not_finite():
    bert = FixedVectors()
    bert.vectors["d3"] = np.full(4, np.nan)
    with pytest.raises(UserError, match="a score of 'q0' is not finite"):
        next(mine(bert, PAIRS, CORPUS, Rules()))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The path of a small model with prompts, and that of a reranker."""
    folder = tmp_path_factory.mktemp("model")
    pretrained, reranker = make_pretrained(), make_finetuned("sequence_classification")
    for weights in (pretrained.weights, reranker.weights):
        for name in weights:
            # No bias makes all texts alike.
            if name.endswith(("bias", "scale")):
                weights[name] = np.full_like(weights[name], name.endswith("scale"))
    formats.write(pretrained, folder / "hf", "huggingface")
    formats.write(reranker, folder / "reranker", "huggingface")
    options = {"pooling": "mean", "query_prompt": "the a ", "document_prompt": "b "}
    convert.convert(str(folder / "hf"), str(folder / "st"), "sentence_transformers", **options)
    return folder / "st", folder / "reranker"


def write_pairs(folder):
    """Writes 12 queries, of which four have two positives, and a corpus; returns all texts."""
    rng = np.random.default_rng(3)
    texts, queries = random_texts(rng, 80), random_texts(rng, 12)
    pairs = [(query, texts[i]) for i, query in enumerate(queries)]
    pairs += [(query, texts[40 + i]) for i, query in enumerate(queries[:4])]
    rows = [{"anchor": query, "positive": text} for query, text in pairs]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "pairs.jsonl").write_text("".join(lines))
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in texts))
    return pairs, texts


@pytest.mark.outside
@pytest.mark.parametrize("is_reranked", [False, True])
@pytest.mark.parametrize(
    "rules",
    [
        {"min_score": -0.9},
        {"range_min": 3, "range_max": 50, "max_score": 0.9},
        {"relative_margin": 0.05, "range_max": 60},
        {"absolute_margin": 0.05, "min_score": 0.1, "range_max": 60},
    ],
    ids=str,
)
def test_beside_the_library(model, tmp_path, rules, is_reranked):
    library = pytest.importorskip("sentence_transformers")
    datasets = pytest.importorskip("datasets")
    mine_hard_negatives = pytest.importorskip("sentence_transformers.util").mine_hard_negatives
    pairs, texts = write_pairs(tmp_path)
    # The library may take the text of the query.
    corpus = [text for text in texts if text not in dict(pairs)]
    path, reranker_path = map(str, model)
    reranker = library.CrossEncoder(reranker_path, device="cpu") if is_reranked else None
    rows = [{"anchor": query, "positive": text} for query, text in pairs]
    theirs = mine_hard_negatives(
        datasets.Dataset.from_list(rows),
        library.SentenceTransformer(path, device="cpu"),
        corpus=corpus,
        cross_encoder=reranker,
        num_negatives=4,
        output_format="n-tuple",
        output_scores=True,
        verbose=False,
        **rules,
    )
    expected = {}
    for row in theirs:
        expected.setdefault(row["anchor"], {})[row["positive"]] = row
    reranker = load_bert(reranker_path) if is_reranked else None
    joined = ((query, [text]) for query, text in pairs)
    found = mine(
        load_bert(path), joined, corpus, Rules(num_negatives=4, **rules), reranker=reranker
    )
    # The library leaves out queries with fewer negatives.
    found = {row["anchor"]: row for row in found if len(row["negative"]) == 4}
    assert found.keys() == expected.keys() and len(found) > 2
    for query, row in found.items():
        assert {*row["positive"]} == expected[query].keys()
        for positive, score in zip(row["positive"], row["positive_scores"], strict=True):
            other = expected[query][positive]
            assert row["negative"] == [other[f"negative_{i}"] for i in range(1, 5)]
            # The weights are large, and so are the rounding errors.
            np.testing.assert_allclose([score, *row["negative_scores"]], other["scores"], atol=1e-4)


def test_the_output_of_the_command_trains_embeddings_and_rerankers(model, tmp_path):
    pairs, texts = write_pairs(tmp_path)
    line = f"mine --model={model[0]} --input={tmp_path}/pairs.jsonl --num_negatives=3"
    line += f" --corpus={tmp_path}/corpus.txt --output={tmp_path}/mined.jsonl"
    printed = runs.succeed(runs.python(f"{line} --max_score=0.5 --reranker={model[1]}"))
    rows = list(read_candidates(tmp_path / "mined.jsonl", BadRecords()))
    lines = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert printed.count(str(len(rows))) and "removed by max_score" in printed
    for row, values in zip(rows, lines, strict=True):
        assert row.documents == [*values["positive"], *values["negative"]]
        assert row.labels == [1] * len(values["positive"]) + [0] * 3
        assert row.scores == [*values["positive_scores"], *values["negative_scores"]]
        # The scores are the reranker's.
        assert all(0 <= score <= 1 for score in row.scores)
    trained = task(tmp_path, lines).rows("train")
    assert len(trained) == sum(len(row["positive"]) for row in lines)
    assert trained.num_documents == 4
    assert not (tmp_path / "mined.jsonl.vectors").exists()
    runs.succeed(runs.python(f"{line} --include_positives"))
    rows = list(read_candidates(tmp_path / "mined.jsonl", BadRecords()))
    assert [sum(row.labels) for row in rows] == [2] * 4 + [1] * 8
    assert {row.query for row in rows} == dict(pairs).keys()
    assert all(row.places and {*row.documents} <= {*texts} for row in rows)


def test_a_killed_command_gives_the_same_bytes_when_it_is_started_again(model, tmp_path):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), 12)) for _ in range(6000)]
    rows = [{"query": text[:9], "positive": text} for text in texts[:300]]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    line = f"mine --model={model[0]} --input={tmp_path}/pairs.jsonl --corpus={tmp_path}/corpus.txt"
    runs.succeed(runs.python(f"{line} --output={tmp_path}/whole.jsonl"))
    process = runs.start(runs.python(f"{line} --output={tmp_path}/mined.jsonl"))
    folder = tmp_path / "mined.jsonl.vectors"

    def has_vectors():
        return any(path.stat().st_size for path in folder.glob("*.f32"))

    runs.wait_for(has_vectors, process)
    process.kill()
    process.communicate()
    assert has_vectors() and not (tmp_path / "mined.jsonl").exists()
    runs.succeed(runs.python(f"{line} --output={tmp_path}/mined.jsonl"))
    assert (tmp_path / "mined.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--max_score=-0.99", "no query has a negative (candidates removed by max_score: "),
        ("--num_negatives=90", "num_negatives is 90, with range_min 0, range_max 92 and "),
        ("--seed=3", "--seed has no effect with --sampling=top"),
        ("--output=mined.csv", "--output is mined.csv; it must be FILE.jsonl"),
        ("--reranker={model}", "has no task head"),
        ("--text_columns=question", "it has no field question; its fields: anchor, positive"),
    ],
)
def test_what_the_command_refuses(model, tmp_path, flags, words):
    write_pairs(tmp_path)
    given = [
        f"--model={model[0]}",
        f"--input={tmp_path}/pairs.jsonl",
        f"--corpus={tmp_path}/corpus.txt",
        f"--output={tmp_path}/mined.jsonl",
        flags.format(model=model[0]),
    ]
    assert words in refusals.command("mine", *given)
    assert not (tmp_path / "mined.jsonl").exists()
    # Vectors are kept for a second try with other limits.
    assert (tmp_path / "mined.jsonl.vectors").exists() == ("no query" in words)
