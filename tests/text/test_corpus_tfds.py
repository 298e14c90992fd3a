"""Data sets of TensorFlow Datasets as documents: named by `tfds:NAME`, counted, refused."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import parse_tfds


@pytest.fixture(scope="module")
def tfds(tensorflow):
    return pytest.importorskip("tensorflow_datasets")


@pytest.fixture
def small_data_set(tfds, tmp_path, monkeypatch):
    """Writes a real data set of 3 texts; returns its name."""
    import numpy as np

    with tfds.core.registered.skip_registration():

        class SmallTexts(tfds.core.GeneratorBasedBuilder):
            # Without this, TFDS would look for the package of this file.
            __module__ = "small_texts"
            VERSION = tfds.core.Version("1.2.0")

            def _info(self):
                features = tfds.features.FeaturesDict({"text": np.str_})
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {"train": self._generate_examples()}

            def _generate_examples(self):
                for i in range(3):
                    yield i, {"text": f"Number {i}."}

    monkeypatch.setattr(
        tfds, "builder", lambda name: SmallTexts(data_dir=str(tmp_path / "data_sets"))
    )
    return "small_texts"


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
        assert [d.text for d in corpus.documents()] == ["One é.", "Two."]
        (source,) = corpus.sources
        assert source.pop("version").startswith("imdb_reviews/plain_text/")
        assert source == {"tfds": "imdb_reviews", "field": "text"}
        for field in ("body", "label"):
            with pytest.raises(UserError, match=f"no text in a field '{field}'; .*: text; write"):
                list(Corpus(f"tfds:imdb_reviews:{field}").documents())


def test_a_data_set_is_downloaded(small_data_set):
    corpus, read = Corpus(f"tfds:{small_data_set}"), []
    corpus.advance = read.append
    assert corpus.fetch() is None
    assert corpus.sources == [
        {"tfds": "small_texts", "field": "text", "version": "small_texts/1.2.0"}
    ]
    assert sorted(d.text for d in corpus.documents()) == ["Number 0.", "Number 1.", "Number 2."]
    assert sum(read) == pytest.approx(2.7e-5)


def test_unknown_data_set(tfds):
    with pytest.raises(UserError, match="no data set 'no_such_data_set'"):
        list(Corpus("tfds:no_such_data_set").documents())
