"""Conversion of a model with a generator to two directories of `transformers`, and back."""

import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.inference.bert import Bert
from bert_jax.interop import formats
from tests.interop.small_bert import copies, edit_json, edit_tensors, make_pretrained, same_weights

TERMS = ("generator", "replaced_token")


def make_electra(**model):
    """Makes an ELECTRA with a generator of width 6, a discriminator of 12, embeddings of 10."""
    return make_pretrained(family="electra", terms=TERMS, generator_size=0.5, **model)


@pytest.fixture
def written(tmp_path):
    formats.write(make_electra(), tmp_path / "both", "huggingface")
    return tmp_path / "both"


def test_two_directories_give_the_same_model(written):
    expected, again = make_electra(), formats.read(written)
    assert (again.family, again.terms, again.model) == ("electra", TERMS, expected.model)
    assert same_weights(again.weights, expected.weights) and not again.warnings
    again.complete()
    assert not again.warnings
    configs = {
        part: json.loads((written / part / "config.json").read_text())
        for part in ("discriminator", "generator")
    }
    assert configs["discriminator"]["architectures"] == ["ElectraForPreTraining"]
    assert configs["generator"]["architectures"] == ["ElectraForMaskedLM"]
    shape = ("hidden_size", "num_attention_heads", "intermediate_size", "embedding_size")
    assert [configs["generator"][key] for key in shape] == [6, 1, 24, 10]


@pytest.mark.parametrize(
    ("part", "terms"), [("discriminator", TERMS[1:]), ("generator", ("masked_lm",))]
)
def test_each_directory_is_a_complete_model(written, tmp_path, part, terms):
    alone = formats.read(written / part)
    assert alone.terms == terms and not alone.warnings
    weights = copies(alone.weights)
    formats.write(alone, tmp_path / "ours", "bert_jax")
    ours = formats.read(tmp_path / "ours")
    assert ours.terms == terms and same_weights(ours.weights, weights)
    formats.write(ours, tmp_path / "again", "huggingface")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (written / part / file).read_bytes()


def test_the_objective_of_training_is_split_and_kept(tmp_path):
    electra = make_electra()
    formats.write(electra, tmp_path / "ours", "bert_jax")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    config["objective"]["weights"] = [1.0, 50.0]
    electra = make_electra()
    electra.training = {"config": config, "step": 7}
    formats.write(electra, tmp_path / "both", "huggingface")
    for part, weights in (("discriminator", [50.0]), ("generator", [1.0])):
        objective = formats.read(tmp_path / "both" / part).training["config"]["objective"]
        assert objective["weights"] == weights
    merged = formats.read(tmp_path / "both")
    assert merged.training == {"config": config, "step": 7} and merged.terms == TERMS


def test_directories_that_do_not_belong_together_are_refused(written):
    name = "electra.embeddings.LayerNorm.bias"
    edit_tensors(written / "generator", lambda tensors: tensors.update({name: tensors[name] + 1}))
    with pytest.raises(UserError, match="differ in bert/embeddings/layer_norm/bias"):
        formats.read(written)
    edit_json(written / "generator" / "config.json", num_attention_heads=2)
    with pytest.raises(UserError, match="num_attention_heads is 2, but .* has 1"):
        formats.read(written)


def test_the_generator_fills_masks_and_the_discriminator_detects(written):
    """Compares the directory of both parts with the directories of single parts."""
    both = Bert(formats.read(written))
    discriminator, generator = (
        Bert(formats.read(written / p)) for p in ("discriminator", "generator")
    )
    text = "the a [MASK] b."
    ours, theirs = both.fill_mask(text, top_k=3), generator.fill_mask(text, top_k=3)
    assert [g.token for g in ours[0]] == [g.token for g in theirs[0]]
    np.testing.assert_allclose(
        [g.probability for g in ours[0]], [g.probability for g in theirs[0]], rtol=1e-5
    )
    found, alone = both.detect("a b cab", "the"), discriminator.detect("a b cab", "the")
    assert [t.token for t in found] == "[CLS] a b c ##a ##b [SEP] the [SEP]".split()
    np.testing.assert_allclose(
        [t.probability for t in found], [t.probability for t in alone], rtol=1e-5
    )
    assert all(t.replaced == (t.probability > 0.5) for t in found)
    with pytest.raises(UserError, match="no generator head|no masked-LM head"):
        discriminator.fill_mask(text)
    with pytest.raises(UserError, match="no replaced-token-detection head, which detect needs"):
        generator.detect(text)
