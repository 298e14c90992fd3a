"""Sentence embeddings against judged similarities, beside scipy and sentence-transformers."""

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import score_pairs
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks.retrieval import read_pairs
from tests import runs
from tests.golden.inputs import real_package
from tests.interop.small_bert import make_pretrained

HEADER = "genre\tsentence1\tsentence2\tscore\n"
ROWS = [
    ("a b c", "a b c", 5.0),
    ("a b c d", "a b e f", 2.25),
    ("the cab", "a bad head", 1.0),
    ("d e", "f g h", 0.0),
    ("a a a b", "b b b a", 3.5),
]


@pytest.fixture
def folder(tmp_path):
    """A folder like that of GLUE's STS-B; only its dev.tsv has scores."""
    lines = "".join(f"news\t{a}\t{b}\t{score}\n" for a, b, score in ROWS)
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "dev.tsv").write_text(HEADER + lines)
    (tmp_path / "sts" / "test.tsv").write_text("genre\tsentence1\tsentence2\nnews\ta\tb\n")
    return tmp_path / "sts"


def cosine(first, second):
    return first @ second / np.linalg.norm(first) / np.linalg.norm(second)


def test_formats(folder, tmp_path):
    pairs = read_pairs(folder, "--sts")
    assert list(zip(*pairs, strict=True)) == ROWS
    names = ("sentence1", "sentence2", "score")
    lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ROWS]
    (tmp_path / "pairs.jsonl").write_text("".join(lines))
    assert list(zip(*read_pairs(tmp_path / "pairs.jsonl", "--sts"), strict=True)) == ROWS
    # As the Hub has them.
    (tmp_path / "hub" / "data").mkdir(parents=True)
    table = pa.Table.from_pylist([json.loads(line) for line in lines])
    parquet.write_table(table, tmp_path / "hub" / "data" / "validation-00000-of-00001.parquet")
    assert list(zip(*read_pairs(tmp_path / "hub", "--sts"), strict=True)) == ROWS


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_match_those_computed_by_hand(folder, pooling):
    bert, counted = Bert(make_pretrained()), []
    found = score_pairs(
        bert, read_pairs(folder, "--sts"), Embedding(pooling, False, 40), counted.append
    )
    judged = [score for *_, score in ROWS]
    sentences = [a for a, _, _ in ROWS] + [b for _, b, _ in ROWS]
    vectors = bert.encode(sentences, pooling=pooling).astype(np.float64)
    similarities = [cosine(*both) for both in zip(vectors[:5], vectors[5:], strict=True)]
    overlaps = []
    for a, b, _ in ROWS:
        ids = bert.tokenizer.encode_batch([a, b])
        overlaps.append(cosine(*(np.bincount(x, minlength=100).astype(float) for x in ids)))
    for prefix, values in (("", similarities), ("common_tokens_", overlaps)):
        expected = scipy.stats.spearmanr(judged, values).statistic
        assert found[f"{prefix}spearman"] == pytest.approx(expected, abs=1e-6)
        expected = scipy.stats.pearsonr(judged, values).statistic
        assert found[f"{prefix}pearson"] == pytest.approx(expected, abs=1e-5)
    assert (found["num_pairs"], found["pooling"], found["max_length"]) == (5, pooling, 40)
    assert sum(counted) == 10


def test_a_blank_sentence_is_similar_to_none_by_tokens(folder):
    (folder / "dev.tsv").write_text(HEADER + "x\ta b\ta b\t5\nx\t\ta b\t0\n")
    found = score_pairs(
        Bert(make_pretrained()), read_pairs(folder, "--sts"), Embedding("mean", False)
    )
    assert found["common_tokens_pearson"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            HEADER + "x\ta\tb\tfive\n",
            "dev.tsv:2: score is 'five', not a number",
        ),
        (HEADER + "x\ta\tb\t5\nx\ta\tb\tNaN\n", "dev.tsv:3: score is 'NaN', not a number"),
        (HEADER + "x\ta\tb\t-inf\n", "dev.tsv:2: score is '-inf', not a number"),
        (HEADER, "dev.tsv has no rows"),
        ("a\tb\tscore\n", "sentence1"),
    ],
)
def test_files_that_are_refused(folder, content, words):
    (folder / "dev.tsv").write_text(content)
    with pytest.raises(UserError, match=words):
        read_pairs(folder, "--sts")


def test_the_command(folder, tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    output = tmp_path / "out.json"
    printed = runs.succeed(
        runs.python(f"evaluate --workdir={tmp_path}/hf --sts={folder} --output={output}")
    )
    results = json.loads(output.read_text())
    assert results["pooling"] == "mean" and results["num_pairs"] == 5
    for name in ("spearman", "common_tokens_spearman"):
        assert f"{results[name]:.4f}" in printed


@pytest.mark.slow
def test_the_score_of_a_real_model_is_that_of_sentence_transformers(shared_data):
    """EmbeddingSimilarityEvaluator of sentence-transformers 6.2.0 gave this on the same file."""
    bert = Bert(formats.read(real_package("minilm")))
    pairs = read_pairs(shared_data / "glue" / "STS-B", "--sts")
    with warnings.catch_warnings(action="error"):
        found = score_pairs(bert, pairs, bert.embedding_with(None, None, None))
    assert found["num_pairs"] == 1500
    assert found["spearman"] == pytest.approx(0.86716, abs=1e-4)
