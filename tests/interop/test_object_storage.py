"""Conversion to and from a bucket: exact, and complete or absent."""

import pytest

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.formats import WRITERS
from tests.interop.small_bert import copies, make_pretrained, same_weights
from tests.interop.vector_kinds import inference_free, pylate, write_encoder


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


@pytest.mark.parametrize("make", [inference_free, pylate])
def test_the_parts_of_vectors_are_in_folders_of_their_own(make, bucket, tmp_path):
    path = make(write_encoder(tmp_path / "local"))
    for file in (file for file in path.rglob("*") if file.is_file()):
        target = f"gs://{bucket}/model/{file.relative_to(path).as_posix()}"
        files.write_whole(files.checked_path(target, "the copy"), file.read_bytes())
    ours, theirs = formats.read(path), formats.read(f"gs://{bucket}/model")
    assert theirs.embedding == ours.embedding and same_weights(theirs.weights, ours.weights)
    other = f"gs://{bucket}/other"
    formats.write(theirs, other, "sentence_transformers")
    assert formats.read(other).embedding.kind == ours.embedding.kind
