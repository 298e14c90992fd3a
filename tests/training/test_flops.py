"""The analytic FLOPs of a step, and the table of peaks."""

import types

import pytest

from bert_jax.models import BertConfig
from bert_jax.training.flops import peak_flops_per_second, train_flops_per_sequence

BASE = BertConfig(30522, 768, 12, 12, 3072)
LARGE = BertConfig(30522, 1024, 24, 16, 4096)


def by_product(config, length, predictions):
    """Each matrix product of the forward pass by its sizes, 2 m k n each."""

    def product(m, k, n):
        return 2 * m * k * n

    width, inner = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads
    depth = width // heads
    block = 3 * product(length, width, width)  # query, key, value
    block += heads * product(length, depth, length)  # scores
    block += heads * product(length, length, depth)  # context
    block += product(length, width, width)  # output projection
    block += product(length, width, inner) + product(length, inner, width)
    mlm = product(predictions, width, width) + product(predictions, width, config.vocab_size)
    pooler = product(1, width, width)
    return 3 * (config.num_hidden_layers * block + mlm + pooler)


@pytest.mark.parametrize("config", [BASE, LARGE])
@pytest.mark.parametrize(("length", "predictions"), [(128, 20), (512, 80)])
def test_formula_counts_every_product(config, length, predictions):
    assert train_flops_per_sequence(config, length, predictions) == by_product(
        config, length, predictions
    )


def test_designs_formula_by_hand():
    # S 2, P 1, L 1, H 2, F 3, V 5:
    # 3 * [2*2*1*(4*4 + 2*2*3) + 4*4*2*1 + 2*1*(4 + 10) + 2*4]
    assert train_flops_per_sequence(BertConfig(5, 2, 1, 1, 3), 2, 1) == 3 * (112 + 32 + 28 + 8)
    # BERT-base at 128 with 20 predictions: 3 * (21,743,271,936 + 603,979,776 + 961,228,800
    # + 1,179,648).
    assert train_flops_per_sequence(BASE, 128, 20) == 69_928_980_480


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v2", 22.5),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2250),
    ],
)
def test_peaks(kind, tera):
    assert peak_flops_per_second(types.SimpleNamespace(device_kind=kind)) == tera * 1e12


@pytest.mark.parametrize("kind", ["cpu", "TPU v9", "Tesla T4", "NVIDIA GeForce RTX 4090", ""])
def test_no_peak_is_invented(kind):
    assert peak_flops_per_second(types.SimpleNamespace(device_kind=kind)) is None
