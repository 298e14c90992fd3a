"""Weights of others' directories: their forms, and all that can be wrong with them."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
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


@pytest.fixture
def google(tmp_path):
    formats.write(make_pretrained(), tmp_path / "google", "google")
    return tmp_path / "google"


class TestReadingHuggingFace:
    def test_old_names_and_a_bare_encoder(self, huggingface):
        def change(tensors):
            for name in list(tensors):
                value = tensors.pop(name)
                if name.startswith("bert."):
                    name = name.removeprefix("bert.")
                    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
                    tensors[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
            tensors["embeddings.position_ids"] = np.arange(40)[None]

        edit_tensors(huggingface, change)
        pretrained = formats.read(huggingface)
        expected = make_pretrained().weights
        assert all(np.array_equal(pretrained.weights[n], expected[n]) for n in pretrained.weights)
        assert pretrained.weights.keys() == {n for n in expected if n.startswith("bert/")}

    def test_heads_that_lack_are_initialised_and_named(self, huggingface):
        edit_tensors(huggingface, lambda tensors: drop_tensors(tensors, "cls.", "bert.pooler"))
        pretrained = formats.read(huggingface)
        pretrained.complete()
        (warning,) = pretrained.warnings
        for head in ("pooler", "masked-LM head", "next-sentence head"):
            assert head in warning
        assert pretrained.weights.keys() == make_pretrained().weights.keys()
        kernel = pretrained.weights["mlm/transform/kernel"]
        assert 0 < np.abs(kernel).max() <= 0.04
        assert not pretrained.weights["nsp/dense/bias"].any()

    def test_a_head_of_another_task_is_left_out_and_named(self, huggingface):
        edit_tensors(huggingface, lambda t: t.update({"classifier.weight": np.zeros((3, 12))}))
        pretrained = formats.read(huggingface)
        assert "classifier.weight" in pretrained.warnings[0]
        assert same_weights(pretrained.weights, make_pretrained().weights)

    def test_the_tied_decoder_may_be_there_but_must_be_tied(self, huggingface):
        def tie(tensors):
            tensors["cls.predictions.decoder.weight"] = tensors[
                "bert.embeddings.word_embeddings.weight"
            ]
            tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

        edit_tensors(huggingface, tie)
        assert same_weights(formats.read(huggingface).weights, make_pretrained().weights)
        name = "cls.predictions.decoder.weight"
        edit_tensors(huggingface, lambda tensors: tensors.update({name: tensors[name] + 1}))
        with pytest.raises(UserError, match="decoder.weight differs from"):
            formats.read(huggingface)

    def test_several_files_with_an_index(self, huggingface):
        _split(huggingface)
        assert same_weights(formats.read(huggingface).weights, make_pretrained().weights)

    @pytest.mark.parametrize(
        "damage", ["gone", "twice", "elsewhere", "number", "list", "empty", "no map", "unlisted"]
    )
    def test_a_wrong_index(self, huggingface, damage):
        index = _split(huggingface)
        path = huggingface / "model.safetensors.index.json"
        if damage == "gone":
            (huggingface / "part-1.safetensors").unlink()
            message = "part-1.safetensors, which is not there"
        elif damage == "twice":
            shutil.copy(huggingface / "part-0.safetensors", huggingface / "part-1.safetensors")
            message = "is in another file"
        elif damage == "elsewhere":
            edit_json(path, weight_map=index | {"cls.predictions.bias": "../other.safetensors"})
            message = "not the name of a file beside it"
        elif damage in ("number", "list", "empty"):
            value = {"number": 3, "list": ["part-0.safetensors"], "empty": ""}[damage]
            edit_json(path, weight_map=index | {"cls.predictions.bias": value})
            message = "not the name of a file beside it"
        elif damage == "no map":
            path.write_text("{}")
            message = "weight_map"
        else:
            edit_json(path, weight_map=index | {"bert.more": "part-0.safetensors"})
            message = "bert.more"
        with pytest.raises(UserError, match=message):
            formats.read(huggingface)

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
    def test_shorter_floats_are_widened_exactly(self, huggingface, dtype):
        edit_tensors(huggingface, lambda t: t.update({n: x.astype(dtype) for n, x in t.items()}))
        expected = {n: x.astype(dtype) for n, x in make_pretrained().weights.items()}
        found = formats.read(huggingface).weights
        assert all(x.dtype == np.float32 for x in found.values())
        assert same_weights(found, {n: x.astype(np.float32) for n, x in expected.items()})

    def test_all_that_is_wrong_with_the_tensors_is_named_at_once(self, huggingface):
        def change(tensors):
            tensors.pop("bert.embeddings.LayerNorm.bias")
            tensors["bert.encoder.layer.1.output.dense.weigth"] = tensors.pop(
                "bert.encoder.layer.1.output.dense.weight"
            )
            tensors["cls.predictions.bias"] = tensors["cls.predictions.bias"][1:]

        edit_tensors(huggingface, change)
        with pytest.raises(UserError) as error:
            formats.read(huggingface)
        for name in (
            "missing: bert.embeddings.LayerNorm.bias, bert.encoder.layer.1.output.dense.weight;",
            "unknown: bert.encoder.layer.1.output.dense.weigth;",
            "cls.predictions.bias is [27], not [28]",
        ):
            assert name in str(error.value)

    @pytest.mark.parametrize("dtype", [np.float64, np.int32, bool])
    def test_other_types_are_no_weights(self, huggingface, dtype):
        name = "bert.pooler.dense.bias"
        edit_tensors(huggingface, lambda t: t.update({name: t[name].astype(dtype)}))
        with pytest.raises(UserError, match=rf"{name} is {np.dtype(dtype).name}"):
            formats.read(huggingface)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"model_type": "roberta"}, "model_type is 'roberta'"),
            ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
            ({"is_decoder": True}, "is_decoder"),
            ({"hidden_act": "swish"}, "hidden_act is 'swish'"),
            ({"num_attention_heads": 5}, "does not divide"),
            ({"hidden_size": "12"}, "must be a number"),
            ({"num_hidden_layers": 0}, "above 0"),
            ({"vocab_size": 10**18}, "at most"),
            ({"layer_norm_eps": -1.0}, "must be above 0"),
            ({"layer_norm_eps": float("nan")}, "must be above 0"),
            ({"hidden_dropout_prob": 7.0}, "below 1"),
            ({"num_hidden_layers": 4}, "missing: bert.encoder.layer.3"),
            ({"num_hidden_layers": 2}, "unknown: bert.encoder.layer.2"),
        ],
    )
    def test_a_config_of_another_model(self, huggingface, change, message):
        edit_json(huggingface / "config.json", **change)
        with pytest.raises(UserError, match=message):
            formats.read(huggingface)

    @pytest.mark.parametrize("content", ["", "{", "[]", "\x00", "[" * 100_000])
    def test_a_damaged_config(self, huggingface, content):
        (huggingface / "config.json").write_text(content)
        with pytest.raises(UserError, match="config.json"):
            formats.read(huggingface)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def test_damaged_weights_end_in_one_sentence(self, huggingface, data):
        path = huggingface / "model.safetensors"
        whole = path.read_bytes()
        damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)), "length")])
        for _ in range(data.draw(st.integers(0, 3), "flips")):
            if damaged:
                # The header is where a flip can do harm beyond a value.
                at = data.draw(st.integers(0, min(len(damaged), 4000) - 1))
                damaged[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        try:
            formats.read(huggingface)
        except UserError:
            pass
        finally:
            path.write_bytes(whole)


class TestReadingGoogle:
    def test_the_prefix_or_the_directory(self, google):
        for path in (google, google / "bert_model.ckpt"):
            assert same_weights(formats.read(path).weights, make_pretrained().weights)

    def test_what_the_optimizer_kept_is_left_out(self, google):
        def change(variables):
            moment = np.ones((12,), np.float32)
            variables["bert/pooler/dense/bias/adam_m"] = moment
            variables["bert/pooler/dense/bias/adam_v"] = moment
            variables["global_step"] = np.int64(20)

        _edit_variables(google, change)
        pretrained = formats.read(google)
        assert pretrained.warnings == []
        assert same_weights(pretrained.weights, make_pretrained().weights)

    def test_fine_tuned_ones_lose_their_head(self, google):
        def change(variables):
            drop_tensors(variables, "cls/")
            variables["output_weights"] = np.ones((3, 12), np.float32)

        _edit_variables(google, change)
        pretrained = formats.read(google)
        pretrained.complete()
        assert "output_weights" in pretrained.warnings[0]
        assert "masked-LM head and no next-sentence head" in pretrained.warnings[1]

    def test_wrong_variables_are_named(self, google):
        def change(variables):
            variables.pop("bert/encoder/layer_0/output/dense/bias")
            variables["bert/encoder/layer_3/output/dense/bias"] = np.ones((12,), np.float32)

        _edit_variables(google, change)
        with pytest.raises(UserError, match=r"missing: .*layer_0.*; unknown: .*layer_3"):
            formats.read(google)

    @pytest.mark.parametrize(
        "name", ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"]
    )
    @pytest.mark.parametrize("keep", [0, 0.3, 0.95])
    def test_truncated_files(self, google, name, keep):
        content = (google / name).read_bytes()
        (google / name).write_bytes(content[: int(len(content) * keep)])
        with pytest.raises(UserError, match="damaged"):
            formats.read(google)

    def test_changed_values_are_noticed(self, google):
        path = google / "bert_model.ckpt.data-00000-of-00001"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            formats.read(google)

    def test_several_checkpoints_in_one_directory(self, google):
        for suffix in ("index", "data-00000-of-00001"):
            for name in ("model.ckpt-10", "model.ckpt-20"):
                shutil.copy(google / f"bert_model.ckpt.{suffix}", google / f"{name}.{suffix}")
            (google / f"bert_model.ckpt.{suffix}").unlink()
        with pytest.raises(UserError, match="model.ckpt-10, model.ckpt-20"):
            formats.read(google)
        formats.read(google / "model.ckpt-20")


def _split(directory) -> dict[str, str]:
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    index = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for part in set(index.values()):
        save_file({n: tensors[n] for n in tensors if index[n] == part}, directory / part)
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def _edit_variables(directory, change):
    import tensorflow as tf

    prefix = str(directory / "bert_model.ckpt")
    reader = tf.train.load_checkpoint(prefix)
    variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    change(variables)
    tensors = [tf.constant(value) for value in variables.values()]
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(variables),
        shape_and_slices=[""] * len(tensors),
        tensors=tensors,
    )
