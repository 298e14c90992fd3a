"""Rerankers in directories of sentence-transformers, without the library."""

import json

import numpy as np
import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from tests.interop.small_bert import LABELS, copies, edit_json, make_finetuned, same_weights

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
OLDER = "sbert_ce_default_activation_function"


def write(path, kind="sentence_transformers", **values):
    pretrained = make_finetuned("sequence_classification")
    for name, value in values.items():
        setattr(pretrained, name, value)
    formats.write(pretrained, path, kind)
    return path


@pytest.mark.parametrize(
    ("library", "config", "expected"),
    [
        (None, {}, ""),
        (None, {OLDER: IDENTITY}, "identity"),
        (None, {OLDER: "torch.nn.Sigmoid"}, "sigmoid"),
        (None, {OLDER: IDENTITY, "sentence_transformers": {"activation_fn": SIGMOID}}, "sigmoid"),
        (None, {OLDER: IDENTITY, "sentence_transformers": {"version": "5.0"}}, "identity"),
        (None, {OLDER: IDENTITY, "sentence_transformers": {"activation_fn": "my.Own"}}, ""),
        (IDENTITY, {OLDER: "torch.nn.Sigmoid"}, "identity"),
        ("my.Own", {OLDER: IDENTITY}, "identity"),
        ("torch.nn.Tanh", {}, "torch.nn.Tanh"),
    ],
)
def test_the_activation_is_found_as_in_the_library(tmp_path, library, config, expected):
    path = write(tmp_path / "st")
    edit_json(path / "config.json", **({"sentence_transformers": None} | config))
    edit_json(path / "config_sentence_transformers.json", activation_fn=library or IDENTITY)
    if library is None:
        # Without this file, the library reads nothing from its own.
        (path / "modules.json").unlink()
    assert formats.read(path).activation == expected


def test_reading_inverts_writing(tmp_path):
    ours = copies(make_finetuned("sequence_classification").weights)
    library = {"prompts": {"query": "the "}, "default_prompt_name": "query"}
    embedding = Embedding(prompt="the ", library=library)
    path = write(tmp_path / "st", activation="identity", embedding=embedding)
    found = formats.read(path)
    assert (found.head, found.labels, found.activation) == (
        "sequence_classification",
        (),
        "identity",
    )
    assert found.embedding.prompt == "the " and found.max_length == 40 and not found.warnings
    assert same_weights(found.weights, ours)
    card = (path / "README.md").read_text()
    assert "| activation | identity |" in card and "| prompt | the |" in card
    assert convert(str(path), str(tmp_path / "again"), "sentence_transformers") == []
    for name in ("config.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        assert (tmp_path / "again" / name).read_text() == (path / name).read_text()
    # transformers has no place for a prompt.
    (warning,) = convert(str(path), str(tmp_path / "hf"), "huggingface")
    assert "its prompt, 'the ', is left out" in warning
    assert formats.read(tmp_path / "hf").activation == "identity"


def test_what_no_file_says_is_a_sigmoid(tmp_path):
    config = json.loads((write(tmp_path / "hf", "huggingface") / "config.json").read_text())
    assert "sentence_transformers" not in config
    path = write(tmp_path / "st")
    assert formats.read(path).activation == "sigmoid"
    library = json.loads((path / "config_sentence_transformers.json").read_text())
    assert (library["model_type"], library["activation_fn"]) == ("CrossEncoder", SIGMOID)


def test_a_regression_gives_its_number(tmp_path):
    pretrained = make_finetuned("sequence_classification", num_hidden_layers=1)
    pretrained.training["config"] = {"task": "stsb"}
    formats.write(pretrained, tmp_path / "st", "sentence_transformers")
    assert formats.read(tmp_path / "st").activation == "identity"


def test_pairs_are_cut_at_the_length_of_the_tokenizer(tmp_path):
    path = write(tmp_path / "hf", "huggingface")
    edit_json(path / "tokenizer_config.json", model_max_length=12)
    bert = bert_jax.load(path)
    with pytest.warns(UserWarning, match="1 of 2 texts are truncated to 12 tokens"):
        (first, second) = bert.rerank("a b", ["c d", "c d e f g h i j a b c d"])
    assert {first.index, second.index} == {0, 1}
    convert(str(path), str(tmp_path / "st"), "sentence_transformers", max_length=9)
    assert formats.read(tmp_path / "st").max_length == 9


def test_other_activations_are_kept_and_named(tmp_path):
    path = write(tmp_path / "hf", "huggingface", activation="torch.nn.Tanh")
    bert = bert_jax.load(path)
    with pytest.raises(UserError, match="is 'torch.nn.Tanh'; it must be sigmoid or identity"):
        bert.rerank("a", ["b"])
    ((_, _, score),) = bert.rerank("a", ["b"], activation="identity")
    with pytest.warns(UserWarning, match="is a reranker: rerank gives its scores"):
        assert bert.classify("a", "b") == pytest.approx(score)
    assert 1 / (1 + np.exp(-score)) == pytest.approx(
        bert.rerank("a", ["b"], activation="sigmoid")[0].score
    )
    convert(str(path), str(tmp_path / "st"), "sentence_transformers")
    assert formats.read(tmp_path / "st").activation == "torch.nn.Tanh"


def test_what_is_no_reranker(tmp_path):
    labeled = make_finetuned("sequence_classification", LABELS)
    formats.write(labeled, tmp_path / "labels", "huggingface")
    with pytest.raises(UserError, match="has 3 labels; rerank needs an encoder with one output"):
        bert_jax.load(tmp_path / "labels").rerank("a", ["b"])
    decoder = make_finetuned("sequence_classification", family="bart")
    formats.write(decoder, tmp_path / "bart", "huggingface")
    with pytest.raises(UserError, match="has a decoder; rerank needs an encoder with one output"):
        bert_jax.load(tmp_path / "bart").rerank("a", ["b"])
    with pytest.raises(UserError, match="fine-tuned; only --to=huggingface has a class for it"):
        convert(str(tmp_path / "labels"), str(tmp_path / "out"), "sentence_transformers")
    path = write(tmp_path / "hf", "huggingface")
    with pytest.raises(UserError, match="only --to=huggingface or sentence_transformers has"):
        convert(str(path), str(tmp_path / "out"), "bert_jax")
    for flag, value in (("pooling", "cls"), ("query_prompt", "the ")):
        with pytest.raises(UserError, match=f"--{flag} is for embeddings, but .* scores pairs"):
            convert(str(path), str(tmp_path / "out"), "sentence_transformers", **{flag: value})
