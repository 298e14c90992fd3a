"""What a user of fine-tuning can do wrong: each ends with one clear sentence."""

import shutil
import sys

import pytest

from bert_jax import config as config_lib
from bert_jax import validation
from bert_jax.errors import UserError
from bert_jax.finetuning.config import finetune_config
from bert_jax.finetuning.run import finetune
from tests.finetuning import small


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bert") / "hf"
    small.write_bert(directory)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    small.write_rows(directory)
    return directory


class TestRefusals:
    def test_bad_rows_with_their_line(self, bert, data, tmp_path):
        shutil.copytree(data, tmp_path / "data")
        path = tmp_path / "data" / "validation.tsv"
        lines = path.read_text().splitlines()
        lines[4] = "no label here"
        path.write_text("\n".join(lines) + "\n")
        bad = small.command(tmp_path / "run", bert, tmp_path / "data")
        small.refused(bad, rf"{path}:5: 1 columns instead of 2 \(--config.data.bad_rows=skip")
        assert not (tmp_path / "run" / "config.json").exists()

    def test_a_file_for_a_work_directory(self, bert, data, tmp_path):
        (tmp_path / "file").write_text("")
        refused = small.command(tmp_path / "file", bert, data)
        small.refused(refused, f"{tmp_path / 'file'} is a file; --workdir must be a directory")

    def test_the_others_configs(self, tmp_path):
        with pytest.raises(UserError, match="one of pre-training .python -m bert_jax.main"):
            finetune(config_lib.default_config(), tmp_path)
        with pytest.raises(UserError, match="one of fine-tuning .mrpc.: python -m bert_jax.fine"):
            validation.validate(finetune_config("mrpc"))
        command = [sys.executable, "-m", "bert_jax.finetune", f"--workdir={tmp_path}"]
        small.refused([*command, "--config=configs/tiny.py"], "one of pre-training")

    @pytest.mark.parametrize(
        "overrides,said",
        [
            ({"data__max_seq_length": 41}, "longer than the 40 positions"),
            ({"optimizer__frozen_layers": 4}, "it must be from -1"),
            ({"optimizer__layer_decay": 1.5}, "config.optimizer.layer_decay is 1.5"),
            ({"train__features": "5"}, "config.train.features has 5"),
            ({"train__features": "last"}, "config.train.features is 'last'"),
            ({"train__features": ","}, "config.train.features is ','"),
            ({"train__bilstm_size": -1}, "config.train.bilstm_size is -1"),
            ({"train__bilstm_size": 8}, "config.train.features is empty: the BiLSTM reads"),
            (
                {"train__features": "-1", "optimizer__frozen_layers": 1},
                "config.optimizer.frozen_layers is 1, but has no effect with config.train.feat",
            ),
            (
                {"train__features": "-1", "optimizer__layer_decay": 0.9},
                "config.optimizer.layer_decay is 0.9, but has no effect",
            ),
            (
                {"train__bilstm_size": 8, "train__features": "-1"},
                "config.task is table; it is for ner and squad",
            ),
            (
                {"train__num_epochs": float("inf")},
                "config.train.num_epochs is inf; it must be a finite number",
            ),
            ({"train__num_epochs": 1e12}, "config.train.num_epochs is 1e\\+12: these are 2e\\+13"),
            ({"train__num_epochs": 0.01}, "not one batch of 8"),
            ({"train__gradient_accumulation_steps": 3}, "config.train.batch_size is 8"),
            ({"eval__predict": "dev"}, r"is 'dev'; it must be one of '' \(empty\), test, all"),
            ({"data__bad_rows": "drop"}, "config.data.bad_rows is 'drop'"),
            ({"table__metric": "recall"}, "config.table.metric is 'recall'"),
            ({"table__text_column": "sentence"}, "no column 'sentence'; there is: text, label"),
        ],
    )
    def test_values(self, bert, data, tmp_path, overrides, said):
        with pytest.raises(UserError, match=said):
            self.in_process(bert, data, tmp_path, **overrides)

    def in_process(self, bert, data, tmp_path, **overrides):
        config = finetune_config("table")
        values = small.OVERRIDES | {k.replace("__", "."): v for k, v in overrides.items()}
        config.update_from_flattened_dict(
            values | {"init_from": str(bert), "data.input": str(data)}
        )
        finetune(config, tmp_path / "run")
