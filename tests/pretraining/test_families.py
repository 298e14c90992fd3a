"""Small models of BERT's relatives are trained, stopped, resumed, evaluated and exported.

test_distilbert.py and test_continue.py have runs that begin with another model.
"""

import html
import importlib.util
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.state import num_parameters
from configs import (
    ablations,
    albert,
    bart,
    diffusion,
    esm,
    eurobert,
    flaubert,
    gte,
    herbert,
    modernbert,
    nomic_bert,
    retromae,
    roberta,
    spanbert,
    tiny,
)
from tests import runs
from tests.parallel.fakes import slices
from tests.small_run import small_run, train_with_interruption

LARGER = {"model.vocab_size": 300}
# SentencePiece finds no more in the short text.
PIECES = {"model.vocab_size": 76}


class Facts(NamedTuple):
    """What holds for a small run of a family.

    Attributes:
      recipe: The module of its config.
      values: Values of the config that differ from those of a small run.
      losses: The names of the metrics that add up to the loss.
      exported: Values of the config.json for `transformers`.
      lost: The beginning of the names of the weights that `transformers` has no tensor for.
      mask: The mask token; empty if the model fills none.
      argument: The argument of the config file.
    """

    recipe: Any
    values: dict[str, Any]
    losses: tuple[str, ...]
    exported: dict[str, Any]
    lost: str = "none"
    mask: str = "[MASK]"
    argument: str = "tiny"


FAMILIES = {
    "bart": Facts(
        bart,
        # Rows of 16 tokens have room for sentences of 14.
        LARGER | {"model.num_decoder_layers": 1, "data.max_sentence_tokens": 14},
        ("denoising_loss",),
        {"architectures": ["BartForConditionalGeneration"], "decoder_layers": 1},
        mask="",
    ),
    "camembert": Facts(
        roberta,
        PIECES,
        ("mlm_loss",),
        {"architectures": ["CamembertForMaskedLM"], "model_type": "camembert"},
        mask="<mask>",
        argument="camembert_tiny",
    ),
    "diffusion": Facts(
        diffusion,
        LARGER,
        ("diffusion_loss",),
        {"architectures": ["NomicBertForMaskedLM"], "model_type": "nomic_bert"},
    ),
    "esm": Facts(
        esm,
        {"model.vocab_size": 33, "data.input": ("synthetic_proteins",)},
        ("mlm_loss",),
        {"architectures": ["EsmForMaskedLM"], "token_dropout": True, "mask_token_id": 32},
        mask="<mask>",
    ),
    "eurobert": Facts(
        eurobert,
        LARGER | {"model.num_key_value_heads": 1},
        ("mlm_loss",),
        {"architectures": ["EuroBertForMaskedLM"], "num_key_value_heads": 1},
        mask="<|mask|>",
    ),
    "flaubert": Facts(
        flaubert,
        LARGER | {"model.intermediate_size": 64},
        ("mlm_loss",),
        {"architectures": ["FlaubertWithLMHeadModel"], "mask_index": 5, "pre_norm": False},
        mask="<special1>",
    ),
    "herbert": Facts(
        herbert,
        LARGER,
        ("mlm_loss", "sso_loss"),
        {"architectures": ["BertForMaskedLM"], "model_type": "bert", "pad_token_id": 1},
        mask="<mask>",
    ),
    "gte": Facts(
        gte,
        LARGER | {"model.rope_scale": 1.5},
        ("mlm_loss",),
        {"architectures": ["GteForMaskedLM"], "type_vocab_size": 0},
    ),
    "nomic_bert": Facts(
        nomic_bert,
        LARGER,
        ("mlm_loss",),
        {"architectures": ["NomicBertForMaskedLM"], "hidden_act": "silu"},
    ),
    "left to right": Facts(
        tiny,
        ablations.ABLATIONS["ltr"],
        ("lm_loss",),
        {"architectures": ["BertLMHeadModel"], "is_decoder": True},
        mask="",
    ),
    "modernbert": Facts(
        modernbert,
        LARGER | {"model.num_hidden_layers": 2, "model.global_every": 2},
        ("mlm_loss",),
        {"architectures": ["ModernBertForMaskedLM"]},
    ),
    "phobert": Facts(
        roberta,
        LARGER,
        ("mlm_loss",),
        {"architectures": ["RobertaForMaskedLM"], "vocab_size": 300, "pad_token_id": 1},
        mask="<mask>",
        argument="phobert_tiny",
    ),
    "roberta": Facts(
        roberta,
        LARGER,
        ("mlm_loss",),
        {"architectures": ["RobertaForMaskedLM"], "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        mask="<mask>",
    ),
    "retromae": Facts(
        retromae,
        {},
        ("mlm_loss", "retromae_loss"),
        {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
        lost="retromae/",
    ),
    "spanbert": Facts(
        spanbert,
        {},
        ("mlm_loss", "sbo_loss"),
        {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
        lost="sbo/",
    ),
    "xlmr": Facts(
        roberta,
        PIECES,
        ("mlm_loss",),
        {"architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta"},
        mask="<mask>",
        argument="xlmr_tiny",
    ),
}


def config_of(name, texts, **overrides):
    if name == "flaubert" and importlib.util.find_spec("sacremoses") is None:
        pytest.skip("needs pip install -e '.[flaubert]'")
    facts = FAMILIES[name]
    config = facts.recipe.get_config("" if facts.recipe is tiny else facts.argument)
    config = small_run(texts, config, **facts.values | overrides)
    if name in ("camembert", "eurobert", "gte", "modernbert", "nomic_bert", "retromae"):
        # They predict whole words or 30 % of the tokens.
        config.train.stages[0].max_predictions_per_seq = 0
    return config


# The tests of parity, objectives, tokenizers and interop hold the parts of the others in every run.
FAST = ("bart", "modernbert")


@pytest.fixture(
    scope="module",
    params=[x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in FAMILIES],
)
def run(request, texts, tmp_path_factory):
    """Returns the facts, the directory and the results of a finished run, and its export."""
    directory = tmp_path_factory.mktemp("family") / "run"
    results = pretrain(config_of(request.param, texts), directory)
    warnings = convert(str(directory), str(directory / "hf"), "huggingface")
    return FAMILIES[request.param], directory, results, warnings


def test_the_losses_of_training_and_evaluation(run):
    facts, directory, results, _ = run
    lines = [line for line in read_metrics(directory) if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["loss"] == pytest.approx(sum(line[name] for name in facts.losses), rel=1e-5)
        assert {name for name in line if name.endswith("_loss")} == {*facts.losses}
    again = evaluate_workdir(directory)
    if facts.recipe is bart:
        # The page has what the decoder writes for a corrupted text of the last evaluation.
        (shown,) = again["filled_texts"]
        assert results["filled_texts"] == [shown]
        (corrupted, _), (mask,) = shown["texts"], shown["masks"]
        assert "<mask>" in corrupted and corrupted.endswith(" →") and mask["original"]
        page = (directory / "report.html").read_text()
        assert html.escape(mask["original"]) in page and "<del>" in page
    for name in facts.losses:
        assert again[name] == pytest.approx(results[name], rel=1e-6)
        if (perplexity := name.replace("loss", "perplexity")) in results:
            assert results[perplexity] == pytest.approx(math.exp(results[name]))


def test_the_export_is_that_of_transformers_and_keeps_every_bit(run):
    facts, directory, _, warnings = run
    hf = directory / "hf"
    config = json.loads((hf / "config.json").read_text())
    assert facts.exported.items() <= config.items()
    ours, theirs = formats.read(directory), formats.read(hf)
    lost = {name for name in ours.weights if name.startswith(facts.lost)}
    assert theirs.weights.keys() == ours.weights.keys() - lost
    assert all(any(name in warning for warning in warnings) for name in lost)
    for name, value in theirs.weights.items():
        np.testing.assert_array_equal(ours.weights[name], value, err_msg=name)
    assert theirs.tokenizer.fingerprint == ours.tokenizer.fingerprint
    # A copy in the native format has all.
    if lost:
        convert(str(directory), str(directory / "copy"), "bert_jax")
        assert formats.read(directory / "copy").weights.keys() == ours.weights.keys()
    if facts.mask:
        one, other = (bert_jax.load(str(path)) for path in (directory, hf))
        text = f"The quick brown {facts.mask} jumps."
        assert one.fill_mask(text) == other.fill_mask(text)
        np.testing.assert_array_equal(one.encode(["The dog."]), other.encode(["The dog."]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_an_interrupted_run_is_bit_identical(name, texts, tmp_path):
    pretrain(config_of(name, texts), tmp_path / "whole")
    train_with_interruption(config_of(name, texts), tmp_path / "resumed", 5)
    states = (runs.final_state(tmp_path / name) for name in ("resumed", "whole"))
    runs.assert_same_bits(*states)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("bart", "data.max_pairs_per_row", 2, "max_pairs_per_row is 2 and .* a target for each"),
        ("bart", "data.corruption", "none", "denoising, which needs decoder_attention_mask"),
        (
            "spanbert",
            "data.corruption",
            "masked_lm",
            "which needs span_left_positions in each",
        ),
        ("left to right", "model.causal", False, "each position sees the token it predicts; set"),
        ("left to right", "data.corruption", "masked_lm", "replaces the tokens it predicts; set"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name, key, value, words, texts, tmp_path):
    with pytest.raises(UserError, match=words):
        pretrain(config_of(name, texts, **{key: value}), tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "size", "parameters"),
    [
        # FlaubertWithLMHeadModel with the authors' 68,729 entries.
        (flaubert, "large", 373_282_937),
        # RobertaForMaskedLM, without its token type and two unused positions.
        (roberta, "base", 124_697_433 - 3 * 768),
        # CamembertForMaskedLM, RobertaForMaskedLM and XLMRobertaForMaskedLM, without the same.
        (roberta, "camembert", 110_655_493 - 3 * 768),
        (roberta, "phobert", 135_063_809 - 3 * 768),
        (roberta, "phobert_large", 369_229_313 - 3 * 1024),
        (roberta, "xlmr", 278_295_186 - 3 * 768),
        (roberta, "xlmr_large", 560_142_482 - 3 * 1024),
        # AlbertModel, and the heads of AlbertForPreTraining.
        (albert, "xlarge_v2", 58_724_864 + 2049 * 128 + 2 * 128 + 30_000 + 2049 * 2),
    ],
)
def test_sizes_are_those_of_transformers(recipe, size, parameters):
    config, sizes = recipe.get_config(size), []
    num_layers = config.model.num_hidden_layers
    for layers in (1, 2):
        config.model.num_hidden_layers = layers
        sizes.append(num_parameters(make_trainer(config, slices(rows=1)).model))
    # All layers after the first have one size.
    assert sizes[0] + (num_layers - 1) * (sizes[1] - sizes[0]) == parameters
