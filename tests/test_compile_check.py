"""The flags of the command, and real compilations if libtpu is installed."""

import importlib.util
import json
import sys

import pytest

from bert_jax.interop import formats
from tests import runs
from tests.interop.small_bert import make_pretrained
from tests.refusals import one_sentence

COMMAND = [sys.executable, "-m", "bert_jax.compile_check", "--config=configs/tiny.py"]
SMALL = {
    "model.vocab_size": 98,
    "model.hidden_size": 32,
    "model.num_hidden_layers": 1,
    "model.intermediate_size": 40,
    "train.batch_size": 16,
    "train.stages[0].max_seq_length": 16,
    "train.stages[0].max_predictions_per_seq": 4,
}
GIB = 2**30

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="no TPU compiler here: pip install -e '.[tpu]'",
)


def command(*flags, **overrides):
    values = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
    return [*COMMAND, *flags, *(f"--config.{key}={value}" for key, value in values.items())]


@pytest.mark.parametrize(
    "flags, status, words",
    [
        (["--topology=v4-127"], 1, "v4-128"),
        (["--topology=v5e:4x4", "--plan", "--stage=2"], 2, "--stage has no effect with --plan"),
        (["--topology=v5e:4x4", "--price_per_chip_hour=1"], 2, "has no effect without --plan"),
        (["--topology=v5e:4x4", "--plan", "--batch_size_per_chip=auto"], 2, "give a number"),
        (
            ["--topology=v5e:4x4", "--stage=2", "--config=configs/finetune/embedding.py"],
            2,
            "--stage has no effect with a config of fine-tuning",
        ),
    ],
)
def test_mistakes(flags, status, words):
    finished = runs.run([*COMMAND, *flags])
    assert finished.returncode == status
    assert words in one_sentence(finished.returncode, finished.stderr)


EMBEDDING = [
    *COMMAND[:3],
    "--config=configs/finetune/embedding.py",
    "--config.data.max_seq_length=16",
    "--config.train.batch_size=64",
    "--config.train.gradient_accumulation_steps=2",
    "--config.embedding.negative_columns=negative",
    "--topology=v5e:2x4",
]


@needs_libtpu
def test_sentence_embeddings_with_negatives_of_all_chips(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    output = tmp_path / "out.json"
    flags = (f"--config.init_from={tmp_path}/hf", "--config.data.input=x", f"--output={output}")
    finished = runs.run([*EMBEDDING, *flags])
    assert finished.returncode == 0, finished.stderr
    found = json.loads(output.read_text())
    # An anchor, a positive and a negative.
    assert found["batch_size"] == 3 * 64 and found["fits"] and found["mesh"]["data"] == 8
    assert found["collectives"]["all-gather"]["bytes"] > 0


@needs_libtpu
def test_the_plan_of_sentence_embeddings_reads_the_data(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    data, output = tmp_path / "pairs.jsonl", tmp_path / "out.json"
    rows = [{"anchor": f"a{i}", "positive": f"b{i}", "negative": "c"} for i in range(1000)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = (f"--config.init_from={tmp_path}/hf", f"--config.data.input={data}", "--plan")
    finished = runs.run([*EMBEDDING, *flags, "--config.train.num_epochs=2", f"--output={output}"])
    assert finished.returncode == 0, finished.stderr
    assert "chip-hours" in finished.stdout
    found = json.loads(output.read_text())
    # A tenth of the rows are held out.
    steps = found["total"]["steps"]
    assert 2 * 0.8 * 1000 / 64 <= steps <= 2 * 1000 / 64
    assert found["total"]["tokens"] == steps * 3 * 64 * 16


@needs_libtpu
def test_a_step_of_a_slice(tmp_path):
    output = tmp_path / "out.json"
    flags = ("--topology=v2-8", f"--output={output}", "--batch_size_per_chip=4")
    finished = runs.run(command(*flags, sharding="dp"))
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    assert "not a measurement" in finished.stdout and "all-reduce" in finished.stdout
    assert "latency" in finished.stdout
    found = json.loads(output.read_text())
    # Four chips with two devices each.
    assert found["chips"] == 4 and found["mesh"]["data"] == 8
    assert found["batch_size"] == 16 and found["batch_size_per_chip"] == 4
    assert found["fits"] and found["hbm_limit_bytes"] == 2 * int(7.48 * GIB)
    total = found["hbm_argument_bytes"] + found["hbm_temporary_bytes"]
    assert found["hbm_total_bytes"] == total < 0.1 * GIB
    # Parameters and both moments are on each of the two devices; tiles add padding.
    assert found["hbm_argument_bytes"] > 2 * 3 * 4 * 98 * 32
    # These include the gradients of the word embeddings, in bfloat16 or float32.
    assert found["collectives"]["all-reduce"]["bytes"] > 2 * 98 * 32
    seconds = found["estimated_step_seconds"]
    assert 0 < seconds < 0.1
    rate = found["estimated_sequences_per_second_per_chip"]
    assert rate == pytest.approx(4 / seconds)
    # The formula of objectives.flops: S 16, N 1, H 32, F 40, P 4, V 98.
    layers = 2 * 16 * (4 * 32**2 + 2 * 32 * 40) + 4 * 16**2 * 32
    flops = 3 * (layers + 2 * 4 * (32**2 + 32 * 98) + 2 * 32**2)
    assert found["estimated_mfu"] == pytest.approx(rate * flops / 45e12)
    assert found["config"]["train"]["batch_size"] == 16


@needs_libtpu
def test_the_plan_of_a_run(tmp_path):
    output = tmp_path / "out.json"
    flags = ("--topology=v5e:2x2", "--plan", "--price_per_chip_hour=2", f"--output={output}")
    stage = {"train__stages[1]__max_seq_length": 32, "train__stages[1]__batch_size": 8}
    finished = runs.run(command(*flags, **stage))
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    assert "chip-hours" in finished.stdout
    found = json.loads(output.read_text())
    # configs/tiny.py: 2,500 steps.
    assert [stage["steps"] for stage in found["stages"]] == [2250, 250]
    assert found["total"]["tokens"] == 2250 * 16 * 16 + 250 * 8 * 32
    seconds = [stage["steps"] * stage["estimated_step_seconds"] for stage in found["stages"]]
    assert found["total"]["price"] == pytest.approx(2 * 4 * sum(seconds) / 3600)
    # Parameters and two moments of a table of 128 rows, and more.
    assert found["checkpoint"]["bytes"] > 3 * 4 * 128 * 32
    assert found["checkpoint"]["lost_steps"] == 500


@needs_libtpu
@pytest.mark.parametrize("sharding", ["dp", "tp"])
def test_a_step_with_the_attention_kernel(tmp_path, sharding):
    output = tmp_path / "out.json"
    # With this many sequences, the dropout keys of all masks do not fit on the chip at once.
    flags = ("--topology=v5e:2x2", f"--output={output}", "--batch_size_per_chip=1100")
    changes = {
        "dtype": "bfloat16",
        "sharding": sharding,
        "mesh__model": 2 if sharding == "tp" else 1,
        "model__hidden_size": 256,
        "model__max_position_embeddings": 128,
        "train__stages[0]__max_seq_length": 128,
    }
    finished = runs.run(command(*flags, **changes))
    assert finished.returncode == 0 and finished.stderr == "", finished.stderr
    found = json.loads(output.read_text())
    assert found["estimate"]["kernel_seconds"] > 0


@needs_libtpu
def test_too_large_for_the_chip(tmp_path):
    output = tmp_path / "out.json"
    flags = ("--topology=v5e:1x1", f"--output={output}")
    # Embeddings of 9.2 GB, their two moments and their gradients.
    finished = runs.run(command(*flags, model__vocab_size=9_000_000, model__hidden_size=256))
    message = one_sentence(finished.returncode, finished.stderr)
    assert finished.returncode == 1 and "GiB more than a v5e has" in message
    found = json.loads(output.read_text())
    assert found["fits"] is False
    assert found["hbm_total_bytes"] > found["hbm_limit_bytes"] == int(15.75 * GIB)
    assert found["hbm_argument_bytes"] > 3 * 4 * 256 * 9e6
    assert found["estimated_step_seconds"] is None and found["estimated_mfu"] is None
    assert "too much by" in finished.stdout
