"""Runs of the command are killed and started again; their final states have the same bits.

tests/parallel/test_multihost.py kills a BERT.
"""

import signal

import pytest

from tests import runs

# A run that takes seconds.
FLAGS = {
    "model.vocab_size": 400,
    "model.hidden_size": 16,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 32,
    "data.num_processes": 1,
    "data.max_sentence_tokens": 22,
    "train.num_steps": 40,
    "train.batch_size": 8,
    "train.stages[0].max_seq_length": 24,
    "checkpoint.every_steps": 4,
    "eval.every_steps": 0,
    "eval.max_sequences": 32,
}
FAMILIES = {
    "bart": {"model.num_decoder_layers": 1},
    "modernbert": {
        "model.num_hidden_layers": 2,
        "model.global_every": 2,
        "model.attention_output_dropout_prob": 0.1,
        "train.stages[0].rope_theta": 50.0,
    },
}


def command(family, directory, texts):
    flags = [f"--config.{key}={value}" for key, value in (FLAGS | FAMILIES[family]).items()]
    main = f"main --config=configs/{family}.py:tiny --workdir={directory}"
    return [*runs.python(main), f"--config.data.input={texts}", *flags]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_killed_run_is_bit_identical(tmp_path, family):
    (tmp_path / "texts").mkdir()
    texts = runs.write_speeches(tmp_path / "texts", 10)
    runs.succeed(command(family, tmp_path / "whole", texts))
    killed = tmp_path / "killed"
    process = runs.start(command(family, killed, texts))
    runs.wait_for(lambda: runs.newest_checkpoint(killed) > 0, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 0 < runs.newest_checkpoint(killed) < 40
    runs.succeed(command(family, killed, texts))
    runs.assert_same_bits(runs.final_state(killed), runs.final_state(tmp_path / "whole"))
