"""A small RoBERTa with every command: it is trained, resumed, exported, fine-tuned and used."""

import json
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax import benchmark, tokenizers
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import train as pretrain
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.metrics import read_metrics
from configs import roberta
from tests import runs
from tests.finetuning import small
from tests.golden.inputs import FOLDER
from tests.interop.small_bert import copies, make_pretrained
from tests.parallel.fakes import slices
from tests.small_run import small_run, train_with_interruption


def run_config(texts, **overrides):
    overrides = {"model.vocab_size": 300} | overrides
    return small_run(texts, roberta.get_config("tiny"), **overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, texts):
    """Returns the work directory of a finished run."""
    directory = tmp_path_factory.mktemp("roberta") / "run"
    assert bert_jax.train(run_config(texts), directory)["step"] == 6
    return directory


@pytest.fixture(scope="module")
def exported(finished):
    convert(str(finished), str(finished / "hf"), "huggingface")
    return finished / "hf"


def test_model_has_neither_segments_nor_a_pooler(finished, exported):
    assert not [name for line in read_metrics(finished) for name in line if "nsp" in name]
    assert evaluation.evaluate_workdir(finished)["mlm_perplexity"] > 1
    tensors = load_file(exported / "model.safetensors")
    assert not [name for name in tensors if "pooler" in name]
    assert not tensors["roberta.embeddings.token_type_embeddings.weight"].any()
    config = json.loads((exported / "config.json").read_text())
    assert config["architectures"] == ["RobertaForMaskedLM"]
    assert config["type_vocab_size"] == 1 and config["layer_norm_eps"] == 1e-5
    card = (exported / "README.md").read_text()
    assert "# RoBERTa, L1 H16" in card and "pipeline_tag: fill-mask" in card


@pytest.mark.slow
def test_interrupted_run_is_bit_identical(finished, texts, tmp_path):
    train_with_interruption(run_config(texts), tmp_path, 5)
    runs.assert_same_bits(runs.final_state(tmp_path), runs.final_state(finished))


def test_fill_mask_and_score(exported):
    bert = bert_jax.load(str(exported))
    ((first, *_),) = bert.fill_mask("The quick brown<mask> jumps.", top_k=3)
    assert 0 < first.probability < 1
    assert bert.score("The dog.").perplexity > 1
    view = bert.attention("The dog", "A fox")
    assert view.tokens.count("</s>") == 3 and view.num_first == len(view.tokens)
    assert bert.encode(["The dog."]).shape == (1, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind", "special_tokens", "folder"),
    [
        ("roberta", "fastbpe", "roberta", "phobert"),
        ("xlm_roberta", "sentencepiece", "roberta", "xlm_roberta"),
        ("camembert", "sentencepiece", "camembert", "xlm_roberta"),
    ],
)
def test_training_continues_from_relatives(texts, tmp_path, family, kind, special_tokens, folder):
    """PhoBERT, XLM-R and CamemBERT, with their own tokenizers."""
    zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(tmp_path)
    given = {"special_tokens": tokenizers.CONVENTIONS[special_tokens]}
    tokenizer = tokenizers.from_file(kind, tmp_path / folder, **given)
    size = {"vocab_size": tokenizer.vocab_size, "type_vocab_size": 0, "num_hidden_layers": 1}
    pretrained = make_pretrained(family=family, layer_norm_eps=1e-5, **size)
    pretrained.tokenizer = tokenizer
    model = {f"model.{key}": value for key, value in pretrained.model.items()}
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    data = {"tokenizer": kind, "special_tokens": special_tokens, "vocab": str(tmp_path / "hf")}
    config = run_config(
        texts,
        **model,
        **{f"data.{key}": value for key, value in data.items()},
        family=family,
        init_from=str(tmp_path / "hf"),
        train__num_steps=2,
        schedule__warmup_steps=100.0,
    )
    pretrain.train(config, tmp_path / "run")
    convert(str(tmp_path / "run"), str(tmp_path / "again"), "huggingface")
    again = formats.read(tmp_path / "again")
    assert (again.family, again.tokenizer.fingerprint) == (family, tokenizer.fingerprint)
    # These are the weights after two warm-up steps.
    for name, value in weights.items():
        np.testing.assert_allclose(again.weights[name], value, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_pairs_are_classified(exported, tmp_path):
    small.check_classified_pairs(exported, tmp_path, "RobertaForSequenceClassification")


def test_the_step_is_timed(texts):
    assert np.isfinite(benchmark.benchmark_step(run_config(texts), 1, 2)["loss"])


@pytest.mark.parametrize("preset", ["fsdp", "tp"])
def test_size_and_sharding_of_base(preset):
    config = roberta.get_config("base")
    config.sharding = preset
    config.mesh.update({"data": 1, {"fsdp": "fsdp", "tp": "model"}[preset]: 4})
    # This is refused unless less than 5 % of the bytes are undivided.
    trainer = make_trainer(config, slices(rows=1))
    # RobertaForMaskedLM of transformers, without its token type and two unused positions.
    assert trainer.num_parameters() == 124_697_433 - 3 * 768
