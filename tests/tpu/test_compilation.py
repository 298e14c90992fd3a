"""The memory that a compiled step needs."""

import pytest

from bert_jax.tpu.compilation import needed_bytes

GIB = 2**30


@pytest.mark.parametrize(
    "said, needed",
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (1.50T) exceeds available HBM (30.75G).",
            1.5 * 2**40,
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 20.16G of 15.75G hbm. Exceeded hbm capacity by 4.41G.",
            20.16 * GIB,
        ),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20M of 16M.", None),
        ("INTERNAL: Used 20.16G of 15.75G hbm.", None),
    ],
)
def test_needed_bytes_of_compiler_messages(said, needed):
    assert needed_bytes(said) == (needed and int(needed))
