"""Rerankers that sentence-transformers or transformers saved, and ours in sentence-transformers."""

import numpy as np
import pytest

import bert_jax
from bert_jax.convert import convert
from bert_jax.interop import formats
from tests.interop.small_bert import edit_json, make_finetuned
from tests.interop.small_tokenizers import modernbert_like
from tests.interop.test_cross_encoder import IDENTITY, OLDER
from tests.tokenizers.test_family_parity import read, unpack

pytestmark = pytest.mark.outside
library = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")

QUERY = "A bad face."
DOCUMENTS = ["The head i j, abed.", "A fed badge faded. " * 9, "", "dig", "naïve 東京 hi"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    models = unpack(tmp_path_factory.mktemp("models"))
    roberta, xlm_roberta = (read(name, models) for name in ("roberta", "xlm_roberta"))
    return {"xlm_roberta": xlm_roberta, "modernbert": modernbert_like(roberta)}


def write(path, family="bert", tokenizer=None):
    size = {"vocab_size": tokenizer.vocab_size} if tokenizer else {}
    pretrained = make_finetuned("sequence_classification", family=family, **size)
    # With larger weights, the rounding errors of both would be above the tolerance.
    pretrained.weights = {name: 0.7 * x for name, x in pretrained.weights.items()}
    pretrained.tokenizer = tokenizer or pretrained.tokenizer
    formats.write(pretrained, path, "huggingface")
    return str(path)


def load(path, **options):
    return library.CrossEncoder(str(path), device="cpu", **options)


def scores_of(model):
    return model.predict([(QUERY, document) for document in DOCUMENTS])


def assert_same(path, theirs):
    """Asserts that a directory gives the scores and the order of a model of the library."""
    with pytest.warns(UserWarning, match=f"truncated to {theirs.max_seq_length} tokens"):
        found = bert_jax.load(path).rerank(QUERY, DOCUMENTS)
    expected = scores_of(theirs)
    assert np.diff(np.sort(expected)).min() > 2e-5
    ranked = theirs.rank(QUERY, DOCUMENTS)
    assert [x.index for x in found] == [x["corpus_id"] for x in ranked]
    np.testing.assert_allclose([x.score for x in found], [x["score"] for x in ranked], atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "xlm_roberta", "distilbert", "electra", "modernbert"])
def test_both_save_and_load_the_same_scores(family, tokenizers, tmp_path):
    made = write(tmp_path / "made", family, tokenizers.get(family))
    for folder, kind in (
        ("library", library.CrossEncoder),
        ("transformers", transformers.AutoModelForSequenceClassification),
    ):
        path = tmp_path / folder
        (load(made) if folder == "library" else kind.from_pretrained(made)).save_pretrained(path)
        if folder == "transformers":
            transformers.AutoTokenizer.from_pretrained(made).save_pretrained(path)
        theirs = load(path)
        assert_same(path, theirs)
        for target in ("huggingface", "sentence_transformers"):
            convert(str(path), str(tmp_path / folder / target), target)
            ours = load(tmp_path / folder / target)
            assert ours.max_seq_length == theirs.max_seq_length
            np.testing.assert_allclose(scores_of(ours), scores_of(theirs), atol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "Sigmoid"),
        ({OLDER: IDENTITY}, "Identity"),
        ({"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.1.0"}}, "Identity"),
        ({"sentence_transformers": {"activation_fn": "my.Own"}, OLDER: IDENTITY}, "Sigmoid"),
    ],
)
def test_the_activations_of_older_versions(config, expected, tmp_path):
    """Released rerankers have no modules.json, and some of these keys."""
    made = write(tmp_path / "made")
    edit_json(tmp_path / "made" / "config.json", **config)
    edit_json(tmp_path / "made" / "tokenizer_config.json", model_max_length=24)
    theirs = load(made)
    assert type(theirs.activation_fn).__name__ == expected and theirs.max_seq_length == 24
    assert_same(made, theirs)
    for target in ("huggingface", "sentence_transformers"):
        convert(made, str(tmp_path / target), target)
        again = load(tmp_path / target)
        assert type(again.activation_fn).__name__ == expected and again.max_seq_length == 24
        assert_same(tmp_path / target, again)


def test_a_prompt_is_put_before_the_query_only(tmp_path):
    made = write(tmp_path / "made")
    prompts = {"query": "the bad ", "document": "a "}
    without, theirs = load(made), load(made, prompts=prompts, default_prompt_name="query")
    assert np.abs(scores_of(without) - scores_of(theirs)).max() > 1e-4
    theirs.save_pretrained(str(tmp_path / "st"))
    assert_same(tmp_path / "st", theirs)
    convert(str(tmp_path / "st"), str(tmp_path / "again"), "sentence_transformers")
    np.testing.assert_allclose(scores_of(load(tmp_path / "again")), scores_of(theirs), atol=1e-6)
    # A prompt that is not the default one is put before nothing.
    edit_json(tmp_path / "st" / "config_sentence_transformers.json", default_prompt_name=None)
    assert_same(tmp_path / "st", without)
