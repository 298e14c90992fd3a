"""Conversion to and from a bucket: exact, and complete or absent."""

import pytest
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.formats import WRITERS
from tests.interop.small_bert import copies, make_finetuned, make_pretrained, same_weights


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


def test_messages_name_the_users_path(bucket):
    with pytest.raises(UserError, match=f"gs://{bucket}/none does not exist"):
        formats.read(f"gs://{bucket}/none")
    formats.write(make_finetuned("question_answering"), f"gs://{bucket}/m", "huggingface")
    back = formats.read(f"gs://{bucket}/m")
    assert back.head == "question_answering" and not back.warnings
    config = files.read_json(epath.Path(f"gs://{bucket}/m/config.json"))
    config["architectures"] = ["BertForMultipleChoice"]
    files.write_json(f"gs://{bucket}/m/config.json", config)
    (others, problem) = formats.read(f"gs://{bucket}/m").warnings
    assert others.startswith(f"gs://{bucket}/m/model.safetensors: qa_outputs")
    assert problem.startswith(f"gs://{bucket}/m: its BertForMultipleChoice has no classifier")
    files.write_whole(f"gs://{bucket}/m/model.safetensors", b"damaged")
    with pytest.raises(UserError, match=f"gs://{bucket}/m/model.safetensors is damaged"):
        formats.read(f"gs://{bucket}/m")
