"""Conversions between all kinds of directories, whole ones and broken ones."""

import itertools
import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.pretrained import TRAINING
from tests.interop.small_bert import (
    TOKENS,
    copies,
    edit_json,
    edit_tensors,
    make_pretrained,
    make_tokenizer,
    same_weights,
)

KINDS = tuple(formats.WRITERS)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def huggingface(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    return tmp_path / "hf"


@pytest.fixture
def google(tmp_path):
    formats.write(make_pretrained(), tmp_path / "google", "google")
    return tmp_path / "google"


@pytest.mark.parametrize("chain", itertools.product(KINDS, KINDS), ids="-".join)
def test_a_chain_of_conversions_returns_every_bit(chain, tmp_path):
    pretrained = make_pretrained(seed=len(chain[0]))
    # Values that arithmetic would not leave alone.
    pretrained.weights["bert/pooler/dense/bias"][:4] = [1e-42, -0.0, np.float32(1) / 3, 3e38]
    training = {"step": 7, "config": {}, "corpus": {"documents": 3}, "results": {"mlm_loss": 2.5}}
    original = copies(pretrained.weights)
    for i, kind in enumerate([*chain, chain[0]]):
        pretrained.training = pretrained.training or training
        formats.write(pretrained, tmp_path / str(i), kind)
        pretrained = formats.read(tmp_path / str(i))
        assert pretrained.warnings == []
    assert same_weights(pretrained.weights, original)
    assert np.signbit(pretrained.weights["bert/pooler/dense/bias"][1])
    assert pretrained.model == make_pretrained().model
    assert pretrained.tokenizer.fingerprint == make_tokenizer().fingerprint
    assert pretrained.training == training


def test_the_weights_are_laid_out_as_transformers_has_them(huggingface):
    ours, theirs = make_pretrained().weights, load_file(huggingface / "model.safetensors")
    layer = "bert.encoder.layer.2."
    query = theirs[layer + "attention.self.query.weight"]
    kernel = ours["bert/encoder/layer_2/attention/query_kernel"]
    # out = weight @ in: row head * K + k holds what our [D, A, K] has at [:, head, k].
    np.testing.assert_array_equal(query[2 * 4 + 1], kernel[:, 2, 1])
    output = theirs[layer + "attention.output.dense.weight"]
    kernel = ours["bert/encoder/layer_2/attention/output_kernel"]
    np.testing.assert_array_equal(output[:, 1 * 4 + 3], kernel[1, 3])
    intermediate = ours["bert/encoder/layer_2/intermediate/kernel"]
    np.testing.assert_array_equal(theirs[layer + "intermediate.dense.weight"], intermediate.T)
    assert theirs["cls.seq_relationship.weight"].shape == (2, 12)
    assert len(theirs) == len(ours)
    config = json.loads((huggingface / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"] and config["model_type"] == "bert"
    assert config["vocab_size"] == len(TOKENS) and config["pad_token_id"] == 0


def test_the_variables_are_those_of_the_original(google):
    import tensorflow as tf

    shapes = dict(tf.train.list_variables(str(google / "bert_model.ckpt")))
    assert shapes["bert/encoder/layer_0/attention/self/query/kernel"] == [12, 12]
    assert shapes["bert/encoder/layer_1/intermediate/dense/kernel"] == [12, 20]
    assert shapes["bert/embeddings/LayerNorm/gamma"] == [12]
    assert shapes["cls/predictions/output_bias"] == [len(TOKENS)]
    assert shapes["cls/seq_relationship/output_weights"] == [2, 12]
    assert len(shapes) == 5 + 16 * 3 + 2 + 5 + 2


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
        edit_tensors(huggingface, lambda tensors: _drop(tensors, "cls.", "bert.pooler"))
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
            _drop(variables, "cls/")
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


def test_a_padded_vocabulary_is_cut_back(tmp_path, kind):
    pretrained = make_pretrained(vocab_size=32)
    full = copies(pretrained.weights)
    pretrained.complete()
    assert "the last 4" in pretrained.warnings[0]
    formats.write(pretrained, tmp_path / "out", kind)
    found = formats.read(tmp_path / "out")
    assert found.model["vocab_size"] == 28
    for name in ("bert/embeddings/word_embeddings", "mlm/output_bias"):
        np.testing.assert_array_equal(found.weights[name], full[name][:28])


@pytest.mark.parametrize("rows", [27, 30, 156])
def test_no_other_difference_is_taken_for_padding(rows):
    message = f"{rows} rows of word embeddings but a vocabulary of 28 entries"
    with pytest.raises(UserError, match=message):
        make_pretrained(vocab_size=rows).complete()


def test_that_a_head_was_never_trained_travels_along(huggingface, tmp_path):
    edit_tensors(huggingface, lambda tensors: _drop(tensors, "cls.pred"))
    pretrained = formats.read(huggingface)
    for kind in (*KINDS, "huggingface"):
        pretrained.complete()
        assert "masked-LM head" in pretrained.warnings[-1]
        formats.write(pretrained, tmp_path / kind / "out", kind)
        pretrained = formats.read(tmp_path / kind / "out")
        shutil.rmtree(tmp_path / kind)
    formats.write(make_pretrained(), tmp_path / "trained", "huggingface")
    pretrained.complete()
    formats.write(pretrained, tmp_path / "untrained", "huggingface")
    cards = [(tmp_path / name / "README.md").read_text() for name in ("trained", "untrained")]
    assert ["fill-mask" in card for card in cards] == [True, False]
    assert "to be trained before use" in cards[1]


def test_nothing_half_written_is_left(tmp_path, kind, monkeypatch):
    pretrained = make_pretrained()
    monkeypatch.setattr(type(pretrained.tokenizer), "save", _fail)
    monkeypatch.setattr("bert_jax.interop.huggingface.write_object", _fail)
    monkeypatch.setattr("bert_jax.interop.google.write_object", _fail)
    with pytest.raises(OSError, match="no space"):
        formats.write(pretrained, tmp_path / "out", kind)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path, kind):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("months of work")
    with pytest.raises(UserError, match="exists already"):
        formats.write(make_pretrained(), tmp_path / "out", kind)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "months of work"


def test_something_that_is_no_model(tmp_path):
    with pytest.raises(UserError, match="x does not exist"):
        formats.read(tmp_path / "x")
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="no BERT that is known here"):
        formats.read(tmp_path / "x")


def test_what_a_shell_completes_is_understood(huggingface, google, tmp_path):
    formats.write(make_pretrained(), tmp_path / "native", "bert_jax")
    for path in (
        huggingface / "model.safetensors",
        google / "bert_model.ckpt.index",
        tmp_path / "native" / "checkpoints",
        tmp_path / "native" / "checkpoints" / "0",
    ):
        assert same_weights(formats.read(path).weights, make_pretrained().weights), path


def test_an_empty_directory_is_filled_and_what_was_killed_is_replaced(tmp_path, kind):
    (tmp_path / "out" / "unfinished_conversion" / "checkpoints").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "out")
    formats.write(make_pretrained(), tmp_path / "link", kind)
    assert not (tmp_path / "out" / "unfinished_conversion").exists()
    assert same_weights(formats.read(tmp_path / "out").weights, make_pretrained().weights)


@pytest.mark.parametrize("was_there", [False, True])
def test_a_full_disk(tmp_path, monkeypatch, was_there):
    def full(*args, **kwargs):
        raise SafetensorError("No space left on device")

    if was_there:
        (tmp_path / "out").mkdir()
    monkeypatch.setattr("bert_jax.interop.huggingface.save_file", full)
    with pytest.raises(UserError, match="model.safetensors could not be written: No space"):
        formats.write(make_pretrained(), tmp_path / "out", "huggingface")
    assert list(tmp_path.rglob("*")) == ([tmp_path / "out"] if was_there else [])


def test_others_may_read_the_weights_as_they_may_the_config(huggingface):
    modes = {(huggingface / name).stat().st_mode for name in ("model.safetensors", "config.json")}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"hidden_act": "gelu_new"}, "gelu_new"),
        ({"layer_norm_eps": 1e-5}, "always takes 1e-12"),
    ],
)
def test_what_the_original_cannot_do_is_told(tmp_path, model, words):
    pretrained = make_pretrained(**model)
    formats.write(pretrained, tmp_path / "google", "google")
    assert words in pretrained.warnings[0]
    assert formats.read(tmp_path / "google").model == pretrained.model


def test_whether_a_foreign_google_vocabulary_is_uncased_can_be_said(google, huggingface):
    (google / "bert_jax_tokenizer.json").unlink()
    for lowercase in (True, False):
        assert formats.read(google, lowercase).tokenizer.options["lowercase"] == lowercase
    with pytest.raises(UserError, match="says itself"):
        formats.read(huggingface, lowercase=True)


@pytest.mark.parametrize(
    "training",
    [
        {"config": 3},
        {"config": {"nosuch": 1}},
        {"corpus": [1]},
        {"results": "good"},
        {"untrained_heads": ["mlm"]},
        {"untrained_heads": 1},
    ],
)
def test_a_damaged_story_of_the_training(huggingface, training):
    (huggingface / TRAINING).write_text(json.dumps(training))
    with pytest.raises(UserError, match=f"{TRAINING} cannot be read .* remove the file"):
        formats.read(huggingface)


def test_the_model_card_tells_how_it_was_trained(tmp_path):
    pretrained = make_pretrained()
    pretrained.training = {
        "step": 2500,
        "config": {"train": {"batch_size": 32}, "seed": 5, "data": {"input": ["a|b.txt"]}},
        "corpus": {"sources": 3},
        "results": {"mlm_loss": 5.8538, "num_sequences": 1024},
    }
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    for row in (
        "| steps | 2500 |",
        "| train.batch_size | 32 |",
        "| seed | 5 |",
        "| data.input | a\\|b.txt |",
        "| masked-LM loss (nats) | 5.854 |",
        "| sequences | 1024 |",
    ):
        assert row in card
    assert (tmp_path / "hf" / TRAINING).exists()


def _fail(*args, **kwargs):
    raise OSError(28, "no space left on device")


def _drop(tensors, *prefixes):
    for name in [name for name in tensors if name.startswith(prefixes)]:
        del tensors[name]


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


def test_a_run_that_has_only_begun(tmp_path):
    make_tokenizer().save(tmp_path / "run" / "tokenizer")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="run has no checkpoint yet: its run has only begun"):
        formats.read(tmp_path / "run")
