"""Data sets of TensorFlow Datasets as documents: named by `tfds:NAME`, counted, refused."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import parse_tfds


@pytest.fixture(scope="module")
def tfds(tensorflow):
    return pytest.importorskip("tensorflow_datasets")


@pytest.mark.parametrize(
    "item, expected",
    [
        ("tfds:lm1b", ("lm1b", "text")),
        ("tfds:imdb_reviews:review", ("imdb_reviews", "review")),
        ("tfds:wikipedia/20230601.en:text", ("wikipedia/20230601.en", "text")),
        ("tfds:wikipedia/20230601.en:1.0.0", ("wikipedia/20230601.en:1.0.0", "text")),
        ("tfds:wikipedia/20230601.en:1.0.0:title", ("wikipedia/20230601.en:1.0.0", "title")),
        ("tfds:wikipedia:1.*.*:title", ("wikipedia:1.*.*", "title")),
    ],
)
def test_names_of_tfds(item, expected):
    assert parse_tfds(item, "text") == expected


def test_tfds(tfds):
    def examples(self, *args, **kwargs):
        import tensorflow as tf

        data = {"text": ["One é.", "Two."], "label": [0, 1]}
        return tf.data.Dataset.from_tensor_slices(data)

    with tfds.testing.mock_data(as_dataset_fn=examples):
        corpus = Corpus("tfds:imdb_reviews")
        assert corpus.fetch() is None
        assert [d.text for d in corpus.documents()] == ["One é.", "Two."]
        (source,) = corpus.sources
        assert source.pop("version").startswith("imdb_reviews/plain_text/")
        assert source == {"tfds": "imdb_reviews", "field": "text"}
        for field in ("body", "label"):
            with pytest.raises(UserError, match=f"no text in a field '{field}'; .*: text; write"):
                list(Corpus(f"tfds:imdb_reviews:{field}").documents())


def test_unknown_data_set(tfds):
    with pytest.raises(UserError, match="no data set 'no_such_data_set'"):
        list(Corpus("tfds:no_such_data_set").documents())
