"""The report of compile_check."""

import pytest

from bert_jax.tpu import report, topologies
from bert_jax.tpu.hlo import Kernel, Operation


def test_costliest_lines():
    root = str(report._PROJECT)

    def operation(cycles, source, kernel=None):
        return Operation("", cycles, 2, source, (), kernel)

    found = report.costliest(
        [
            operation(100, f"{root}/bert_jax/models/attention.py:40"),
            operation(250, "/python/lib/site-packages/optax/update.py:42"),
            operation(200, f"{root}/bert_jax/models/attention.py:40"),
            operation(0, f"{root}/bert_jax/models/flash.py:9", Kernel(bytes_accessed=273_000_000)),
            operation(50, ""),
            *(operation(1, f"{root}/bert_jax/models/bert.py:{i}") for i in range(10)),
        ],
        topologies.find("v5e:1x1"),
    )
    assert len(found) == 10
    # Two executions of a third of a millisecond at 1.5 GHz.
    assert found[0]["source"] == "bert_jax/models/flash.py:9"
    assert found[0]["cycles"] == 1_000_000
    assert [(line["source"], line["cycles"]) for line in found[1:4]] == [
        ("bert_jax/models/attention.py:40", 600),
        ("optax/update.py:42", 500),
        ("unknown", 100),
    ]
    assert found[1]["fraction"] == pytest.approx(600 / 1_001_220)
