"""The benchmark command times a very small model."""

import json
import sys

import jax
import pytest

from bert_jax import benchmark
from tests import runs
from tests.small_run import small_run, write_documents

FIGURES = (
    "sequences_per_second tokens_per_second step_seconds_median flops_per_second mfu device config"
)


def test_the_command_writes_a_table_and_json(tmp_path):
    data_input = write_documents(tmp_path / "texts", 5)
    timed = [sys.executable, "-m", "bert_jax.benchmark", "--config=configs/tiny.py"]
    timed += [f"--config.data.input={data_input}", "--config.data.num_processes=1"]
    timed += ["--config.model.vocab_size=200", "--config.train.batch_size=4"]
    output = tmp_path / "out.json"
    printed = runs.succeed([*timed, "--what=input", "--steps=5", f"--output={output}"])
    results = json.loads(output.read_text())
    assert set(FIGURES.split()) <= set(results)
    assert results["mfu"] is None and results["flops_per_second"] is None
    assert results["tokens_per_second"] == pytest.approx(32 * results["sequences_per_second"])
    assert results["device"] == f"{jax.device_count()} x cpu"
    assert results["config"]["train"]["batch_size"] == 4
    assert results["what"] == "input" and results["stage"] == 1
    assert "4 sequences of 32 tokens" in printed and str(output) in printed


def test_step():
    results = benchmark.benchmark_step(small_run("sotu"), 1, 6)
    assert set(FIGURES.split()) - {"device", "config"} <= set(results)
    assert results["mfu"] is None, "no peak is known for a CPU"
    seconds = results["step_seconds_median"]
    assert 0 < results["step_seconds_min"] <= seconds <= results["step_seconds_max"]
    assert results["sequences_per_second"] == pytest.approx(4 / seconds)
    assert results["tokens_per_second"] == pytest.approx(4 * 16 / seconds)
    # The formula of objectives.flops: S 16, N 1, H 16, F 16, P 4, V 200.
    layers = 2 * 16 * 1 * (4 * 16**2 + 2 * 16 * 16) + 4 * 16**2 * 16 * 1
    flops = 4 * 3 * (layers + 2 * 4 * (16**2 + 16 * 200) + 2 * 16**2)
    assert results["flops_per_second"] == pytest.approx(flops / seconds)
    assert 0 < results["loss"] < 10
