"""Directories of `transformers`: their variants, and their errors."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from tests.interop.small_bert import (
    drop_tensors,
    edit_json,
    edit_tensors,
    make_pretrained,
    same_weights,
)


@pytest.fixture
def huggingface(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    return tmp_path / "hf"


def test_old_names_and_a_bare_encoder(huggingface):
    def change(tensors):
        for name in list(tensors):
            value = tensors.pop(name)
            if name.startswith("bert."):
                name = name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")
                tensors[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
        tensors["embeddings.position_ids"] = np.arange(40)[None]

    edit_tensors(huggingface, change)
    expected = make_pretrained().weights
    expected = {name: x for name, x in expected.items() if name.startswith("bert/")}
    assert same_weights(formats.read(huggingface).weights, expected)


def test_missing_heads_are_initialized(huggingface):
    edit_tensors(huggingface, lambda tensors: drop_tensors(tensors, "cls.", "bert.pooler"))
    pretrained = formats.read(huggingface)
    pretrained.complete()
    (warning,) = pretrained.warnings
    for head in ("pooler", "masked-LM head", "next-sentence head"):
        assert head in warning
    assert pretrained.weights.keys() == make_pretrained().weights.keys()
    assert 0 < np.abs(pretrained.weights["mlm/transform/kernel"]).max() <= 0.04
    assert not pretrained.weights["nsp/dense/bias"].any()


def test_the_decoder_must_be_tied(huggingface):
    embeddings, name = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"

    def tie(tensors):
        tensors[name] = tensors[embeddings]
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

    edit_tensors(huggingface, tie)
    assert same_weights(formats.read(huggingface).weights, make_pretrained().weights)
    edit_tensors(huggingface, lambda tensors: tensors.update({name: tensors[name] + 1}))
    with pytest.raises(UserError, match="decoder.weight differs from"):
        formats.read(huggingface)


def split(directory) -> dict[str, str]:
    """Splits the weights into two files; returns the index."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for part in set(index.values()):
        save_file({n: tensors[n] for n in tensors if index[n] == part}, directory / part)
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def test_several_files_with_an_index(huggingface):
    split(huggingface)
    assert same_weights(formats.read(huggingface).weights, make_pretrained().weights)
    (huggingface / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="part-1.safetensors"):
        formats.read(huggingface)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index | {"cls.predictions.bias": "../x.safetensors"}, "of a file beside it"),
        (lambda index: None, "hf is damaged or another program's: AttributeError"),
    ],
)
def test_a_wrong_index(huggingface, change, message):
    index = split(huggingface)
    path = huggingface / "model.safetensors.index.json"
    edit_json(path, weight_map=change(index))
    with pytest.raises(UserError, match=message):
        formats.read(huggingface)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_converted_exactly(huggingface, dtype):
    edit_tensors(huggingface, lambda t: t.update({n: x.astype(dtype) for n, x in t.items()}))
    expected = {n: x.astype(dtype) for n, x in make_pretrained().weights.items()}
    found = formats.read(huggingface).weights
    assert all(x.dtype == np.float32 for x in found.values())
    assert same_weights(found, {n: x.astype(np.float32) for n, x in expected.items()})


def test_all_wrong_tensors_are_named_in_one_message(huggingface):
    def change(tensors):
        tensors.pop("bert.embeddings.LayerNorm.bias")
        kernel = tensors.pop("bert.encoder.layer.1.output.dense.weight")
        tensors["bert.encoder.layer.1.output.dense.weigth"] = kernel
        tensors["cls.predictions.bias"] = tensors["cls.predictions.bias"][1:]

    edit_tensors(huggingface, change)
    with pytest.raises(UserError) as error:
        formats.read(huggingface)
    for words in (
        "missing: bert.embeddings.LayerNorm.bias, bert.encoder.layer.1.output.dense.weight;",
        "unknown: bert.encoder.layer.1.output.dense.weigth;",
        "cls.predictions.bias is [27], not [28]",
    ):
        assert words in str(error.value)


def test_other_types_of_weights_are_refused(huggingface):
    name = "bert.pooler.dense.bias"
    edit_tensors(huggingface, lambda tensors: tensors.update({name: np.zeros(12)}))
    with pytest.raises(UserError, match=f"safetensors: {name} is float64"):
        formats.read(huggingface)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; it must be one of bert, .*, or --family"),
        ({"position_embedding_type": "relative_key"}, "it must be 'absolute'"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; it must be one of gelu"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5: the number of heads"),
        ({"hidden_size": "12"}, "config.json: hidden_size is '12'; it must be a whole number"),
        ({"hidden_size": None}, "hidden_size is None; it must be"),
        ({"layer_norm_eps": float("nan")}, "must be a number"),
        ({"num_hidden_layers": 4}, "missing: bert.encoder.layer.3"),
        ({"num_hidden_layers": 2}, "unknown: bert.encoder.layer.2"),
        ({"type_vocab_size": 0}, "unknown: bert.embeddings.token_type_embeddings.weight"),
    ],
)
def test_the_config_of_another_model(huggingface, change, message):
    edit_json(huggingface / "config.json", **change)
    with pytest.raises(UserError, match=message):
        formats.read(huggingface)
