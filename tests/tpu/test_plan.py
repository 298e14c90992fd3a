"""The bill of a run, from the estimates of its stages."""

import pytest
from rich.console import Console

from bert_jax.tpu.plan import bill, print_plan

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
    }
    for number, steps, length, seconds in ((1, 900_000, 128, 0.02), (2, 100_000, 512, 0.09))
]


def test_hours_tokens_and_prices_add_up():
    found = bill(
        STAGES,
        state_bytes=4_000_000_000,
        checkpoint_every_steps=1000,
        checkpoint_mb_per_second=400,
        price_per_chip_hour=1.5,
    )
    assert [stage["hours"] for stage in found["stages"]] == pytest.approx([5, 2.5])
    assert [stage["price"] for stage in found["stages"]] == pytest.approx([5 * 48, 2.5 * 48])
    # The paper's 3.3 billion words, about 40 times.
    tokens = 900_000 * 256 * 128 + 100_000 * 256 * 512
    assert found["total"] == pytest.approx(
        {"steps": 1_000_000, "tokens": tokens, "hours": 7.5, "chip_hours": 240, "price": 360}
    )
    saved = found["checkpoint"]
    assert saved["write_seconds"] == pytest.approx(10)
    # The slowest stage loses most.
    assert (saved["lost_steps"], saved["lost_seconds"]) == (1000, pytest.approx(90))
    with (console := Console(width=120)).capture() as capture:
        print_plan(found, console)
    lines = [" ".join(line.replace("│", " ").split()) for line in capture.get().splitlines()]
    assert lines[0] == "2 x v5e:4x4: 32 chips"
    assert "2 512 100,000 90.0 2.5 80 13.1 120" in lines
    assert "total 1,000,000 7.5 240 42.6 360" in lines
    assert "minutes that a crash loses at most 1.5" in lines


def test_without_a_price_and_with_fewer_steps_than_a_checkpoint_needs():
    stages = [{**STAGES[0], "steps": 200}]
    found = bill(
        stages,
        state_bytes=1,
        checkpoint_every_steps=1000,
        checkpoint_mb_per_second=1,
        price_per_chip_hour=None,
    )
    assert "price" not in found["total"] and "price" not in found["stages"][0]
    assert found["checkpoint"]["lost_steps"] == 200
    with (console := Console(width=120)).capture() as capture:
        print_plan(found, console)
    assert "price" not in capture.get()
