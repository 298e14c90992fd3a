"""The report of compile_check, and the bill of a run."""

import pytest

from bert_jax.base.progress import terminal
from bert_jax.tpu import results, topologies
from bert_jax.tpu.compilation import Compiled
from bert_jax.training.stages import numbered_stage
from tests.small import small_config
from tests.tpu import one_layer

STAGES = [
    {
        "topology": "v5e:4x4",
        "slices": 2,
        "chips": 32,
        "stage": number,
        "steps": steps,
        "batch_size": 256,
        "max_seq_length": length,
        "estimated_step_seconds": seconds,
        "not_estimated": "",
    }
    for number, steps, length, seconds in ((1, 900_000, 128, 0.02), (2, 100_000, 512, 0.09))
]
UNKNOWN = {"estimated_step_seconds": None, "not_estimated": "KeyError: '[b]'"}


def printed(show, *args):
    with (console := terminal(width=120)).capture() as capture:
        show(*args, console)
    return [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]


def test_hours_tokens_and_prices_add_up():
    found = results.bill(STAGES, state_bytes=4_000_000_000, every_steps=1000, price=1.5)
    assert [stage["hours"] for stage in found["stages"]] == pytest.approx([5, 2.5])
    assert [stage["price"] for stage in found["stages"]] == pytest.approx([5 * 48, 2.5 * 48])
    # The paper's 3.3 billion words, about 40 times.
    tokens = 900_000 * 256 * 128 + 100_000 * 256 * 512
    assert found["total"] == pytest.approx(
        {"steps": 1_000_000, "tokens": tokens, "hours": 7.5, "chip_hours": 240, "price": 360}
    )
    lines = printed(results.print_bill, found)
    assert lines[0] == "2 x v5e:4x4: 32 chips"
    assert "2 512 100,000 90.0 2.5 80 13.1 120" in lines
    assert "total 1,000,000 7.5 240 42.6 360" in lines
    # The slowest stage loses most.
    assert "has 4.00 GB. A crash loses at most 1,000 steps, 1.5 minutes." in " ".join(lines)


def test_a_bill_without_a_price_or_a_time():
    found = results.bill([{**STAGES[0], "steps": 200}], 1, every_steps=1000, price=None)
    assert "price" not in found["total"] and "price" not in found["stages"][0]
    assert found["checkpoint"]["lost_steps"] == 200
    # The hours of a run with an unknown stage are unknown.
    found = results.bill([STAGES[0], STAGES[1] | UNKNOWN], 1, every_steps=1000, price=1.5)
    assert set(found["total"]) == {"steps", "tokens"}
    lines = printed(results.print_bill, found)
    assert "1 128 900,000 20.0 29.5" in lines and "2 512 100,000 13.1" in lines
    assert "The time of stage 2 is unknown: KeyError: '[b]'" in lines


@pytest.mark.parametrize(
    "line, reason",
    [
        ("  %a = f32[8] all-reduce(%b), replica_groups=new[1]", "ValueError: the groups of a coll"),
        ("  %a = f32[8] while(%b), loop=%c", "KeyError: "),
        ("  %a = f32[8] call-done(%b)", "KeyError: 'b'"),
    ],
)
def test_a_program_that_is_not_understood_has_no_estimate(line, reason):
    topology = topologies.find("v5e:4x4")
    text = "ENTRY %main (b: f32[8]) -> f32[8] {\n" + line + "\n}\n"
    step = Compiled(text, 2**30, 2**20, 1.0, {"data": 16}, "dp", 1e9, 2**30)
    found = results.step_results(numbered_stage(small_config(), 1), step, topology)
    assert found["fits"] and found["not_estimated"].startswith(reason)
    assert found["estimated_mfu"] is None and found["estimate"] is None
    lines = printed(results.print_step_results, found, topology)
    assert "argument 1.00 GiB" in lines
    assert f"The time is unknown: {reason}" in " ".join(lines)


def one_layer_results(chip, text):
    topology = topologies.find(one_layer.TOPOLOGIES[chip])
    config = one_layer.config()
    flops = config.train.batch_size * one_layer.flops_per_sequence()
    step = Compiled(text, 2**30, 2**20, 1.0, {"fsdp": 4}, "zero1", flops, 2**30)
    return results.step_results(numbered_stage(config, 1), step, topology)


@pytest.mark.parametrize("chip", one_layer.TOPOLOGIES)
def test_a_whole_step_has_an_estimate(chip):
    found = one_layer_results(chip, one_layer.program_of(chip))
    assert found["not_estimated"] == "" and 0 < found["estimated_mfu"] < 1


@pytest.mark.parametrize("chip", one_layer.TOPOLOGIES)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"estimated_cycles"', '"cycles"'),
        (" convolution(", " product("),
        ("dim_labels=", "axes="),
        (" fusion(", " fused("),
        ("calls=", "called="),
        (" all-gather", " all-gather-new"),
        (" all-gather", " gather-from-all"),
        ("replica_groups=", "groups="),
        ('"cost_estimate"', '"cost"'),
        ('"tpu_custom_call"', '"tpu_kernel"'),
        ("  %", "  @"),
    ],
)
def test_what_is_written_differently_is_unknown_and_not_faster(chip, old, new):
    text = one_layer.program_of(chip)
    assert old in text
    found = one_layer_results(chip, text.replace(old, new))
    assert found["not_estimated"] and found["estimated_step_seconds"] is None
