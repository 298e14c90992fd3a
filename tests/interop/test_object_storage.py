"""Conversion to and from a bucket: exact, and complete or absent."""

import pytest

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.formats import WRITERS
from tests.interop.small_bert import copies, make_pretrained, same_weights


@pytest.mark.parametrize("kind", WRITERS)
def test_round_trip_through_a_bucket(kind, bucket):
    original = make_pretrained()
    weights = copies(original.weights)
    if kind == "sentence_transformers":
        weights = {name: x for name, x in weights.items() if name.startswith("bert/")}
    path = f"gs://{bucket}/models/{kind}"
    formats.write(original, path, kind)
    back = formats.read(path)
    assert back.source == path
    assert same_weights(back.weights, weights)
    assert back.tokenizer.fingerprint == make_pretrained().tokenizer.fingerprint
    found = files.list_files(path)
    assert not [name for name in found if "unfinished" in name]
    written = {name: int(info["generation"]) for name, info in found.items()}
    last = max(written, key=written.get)
    assert last.rpartition("/")[2] in ("config.json", "bert_config.json")
    with pytest.raises(UserError, match=f"{path} exists already"):
        formats.write(make_pretrained(), path, kind)
