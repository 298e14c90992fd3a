"""The paper's ablations: the configs are valid, and the models most unlike BERT can be trained."""

import json

import pytest

from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.finetuning.run import finetune
from bert_jax.pretraining import evaluation
from bert_jax.pretraining import train as pretrain
from bert_jax.training.metrics import read_metrics
from configs import ablations
from tests import runs
from tests.finetuning import small
from tests.small_run import (
    small_run,
    train_with_interruption,
    write_documents,
)

LTR = {key.replace(".", "__"): value for key, value in ablations.ABLATIONS["ltr"].items()}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.causal", False, "each position sees the token it predicts; set it to True"),
        ("data.corruption", "masked_lm", "replaces the tokens it predicts; set it to none"),
    ],
)
def test_a_left_to_right_model_without_meaning_is_refused(key, value, words, texts, tmp_path):
    config = small_run(texts, **LTR | {key.replace(".", "__"): value})
    with pytest.raises(UserError, match=words):
        pretrain.train(config, tmp_path / "run")


@pytest.fixture(scope="module")
def ltr(tmp_path_factory, texts):
    """Returns the directory of a finished run of the left-to-right model."""
    directory = tmp_path_factory.mktemp("ltr") / "run"
    pretrain.train(small_run(texts, **LTR), directory)
    return directory


@pytest.mark.slow
def test_single_segments_do_not_need_a_second_document(tmp_path):
    changes = ablations.ABLATIONS["single_segment"] | {"data.heldout_fraction": 0.0}
    text = write_documents(tmp_path / "text", 1)
    results = pretrain.train(small_run(text, **changes), tmp_path / "run")
    assert results["step"] == 6 and "nsp_loss" not in read_metrics(tmp_path / "run")[0]


class TestLeftToRight:
    def test_it_reports_the_next_token(self, ltr):
        lines = read_metrics(ltr)
        assert {"lm_loss", "lm_accuracy"} <= lines[0].keys() and "mlm_loss" not in lines[0]
        assert evaluation.evaluate_workdir(ltr)["lm_perplexity"] > 1

    @pytest.mark.slow
    def test_interrupted_run_is_bit_identical(self, ltr, texts, tmp_path):
        train_with_interruption(small_run(texts, **LTR), tmp_path, 5)
        runs.assert_same_bits(runs.final_state(tmp_path), runs.final_state(ltr))

    def test_fine_tuned_model_stays_causal(self, ltr, tmp_path):
        """Reads an exported decoder back; its classifier uses the last token."""
        exported = tmp_path / "hf"
        convert.convert(str(ltr), str(exported), "huggingface")
        config = json.loads((exported / "config.json").read_text())
        assert config["architectures"] == ["BertLMHeadModel"] and config["is_decoder"] is True
        small.write_rows(tmp_path / "rows", train=32, validation=8)
        sizes = {"train__num_epochs": 2.0, "data__max_seq_length": 12}
        run = small.config(exported, tmp_path / "rows", **sizes)
        results = finetune(run, tmp_path / "tuned")
        assert results["step"] == 8
        assert json.loads((tmp_path / "tuned" / "config.json").read_text())["model"]["causal"]
