"""Wrong values in the config of a directory give one sentence, whichever command opens it."""

import json
import shutil
import time

import pytest

import bert_jax
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.config import cli, validate

WRONG = {
    "model": [1],
    "model.num_attention_heads": [5, "two"],
    "model.hidden_size": [10**23],
    "model.vocab_size": [10**15, 100],
    "model.num_hidden_layers": [20_000],
    "model.initializer_range": ["NaN"],
    "model.new_key": [1],
    "objective.terms": [["morse", "next_sentence"]],
    "train.stages": [[{"fraction": 0.5}]],
}
CASES = [(key, value) for key, values in WRONG.items() for value in values]


def edited(finished, directory, key, value):
    """Returns a copy of the run whose stored config has another value."""
    shutil.copytree(finished, directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    section = config
    *above, last = key.split(".")
    for name in above:
        section = section[name]
    section[last] = value
    path.write_text(json.dumps(config).replace('"NaN"', "NaN"))
    return directory


def continue_run(directory):
    config = cli.stored_config(str(directory))
    validate(config)
    pretrain(config, directory)


@pytest.mark.parametrize(("key", "value"), CASES)
def test_a_wrong_value_is_refused(key, value, finished, tmp_path, refusal):
    directory = edited(finished, tmp_path / "run", key, value)
    for opens in (bert_jax.load, evaluate_workdir, continue_run):
        started = time.process_time()
        sentence = refusal(lambda opens=opens: opens(directory))
        assert time.process_time() - started < 10
        assert key.rpartition(".")[2] in sentence or str(directory) in sentence, sentence
