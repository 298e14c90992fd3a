"""Mistakes in fine-tuning that depend on the weights or the data, each reported in one sentence."""

import shutil

import pytest

from bert_jax.base.errors import UserError
from bert_jax.commands.finetune import finetune
from tests.finetuning import small


@pytest.mark.parametrize(
    ("split", "advice"), [("validation", r" \(config.data.bad_rows=skip"), ("test", "$")]
)
def test_bad_rows_with_their_line(bert, data, tmp_path, split, advice):
    """Those that are only predicted are read before the first step too."""
    shutil.copytree(data, tmp_path / "data")
    path = tmp_path / "data" / f"{split}.tsv"
    lines = path.read_text().splitlines()
    lines[4] = "no label here"
    path.write_text("\n".join(lines) + "\n")
    config = small.config(bert, tmp_path / "data", eval__predict="test")
    with pytest.raises(UserError, match=f"{path}:5: 1 columns instead of 2{advice}"):
        finetune(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    "values, words",
    [
        ({"data.max_seq_length": 41}, "longer than the 40 positions"),
        ({"train.num_epochs": 0.01}, "one batch of config.train.batch_size=8"),
        ({"train.gradient_accumulation_steps": 3}, "config.train.batch_size is 8"),
        (
            {"table.threshold": 0.4},
            "config.table.threshold is 0.4 and config.table.multi_label is False: the former has",
        ),
        (
            {"table.regression": True, "table.class_weights": "balanced"},
            "config.table.class_weights is 'balanced' .*: a number has no labels",
        ),
        (
            {"table.multi_label": True, "table.class_weights": "balanced"},
            "config.table.class_weights is 'balanced' and .* unless the latter is False",
        ),
        ({"table.metric": "recall"}, "config.table.metric is 'recall'"),
        ({"table.text_column": "sentence"}, "named 'sentence'; the columns are: text, label"),
    ],
)
def test_values_that_do_not_fit_weights_or_data(bert, data, tmp_path, values, words):
    config = small.config(bert, data, **values)
    with pytest.raises(UserError, match=words):
        finetune(config, tmp_path / "run")
