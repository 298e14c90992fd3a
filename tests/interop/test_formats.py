"""Conversions between all kinds of directories, and what is written there."""

import itertools
import json
import shutil

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.pretrained import TRAINING
from tests.interop.small_bert import (
    TOKENS,
    copies,
    drop_tensors,
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
    edit_tensors(huggingface, lambda tensors: drop_tensors(tensors, "cls.pred"))
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


def test_a_run_that_has_only_begun(tmp_path):
    make_tokenizer().save(tmp_path / "run" / "tokenizer")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="run has no checkpoint yet: its run has only begun"):
        formats.read(tmp_path / "run")


def _fail(*args, **kwargs):
    raise OSError(28, "no space left on device")
