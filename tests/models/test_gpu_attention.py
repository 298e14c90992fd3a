"""The attention kernels of GPUs alone, run as plain JAX: forms, windows, blocks, and lowering."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.models import BertConfig, gpu_attention
from bert_jax.models import attention as attention_module
from bert_jax.models.dropout import mask_keys
from bert_jax.models.encoder import Encoder
from tests.models.test_fused_attention import RATE, make_case, relative, written_out
from tests.small import ones_in_norms, randomized

MEASURED = gpu_attention.Form(*[gpu_attention.Tiling(64, 64, 4, 2)] * 2)
SECOND = gpu_attention.Form(
    gpu_attention.Tiling(128, 64, 8, 3),
    gpu_attention.Tiling(64, 128, 4, 2),
    gpu_attention.Tiling(128, 32, 4, 2),
)


def make_numbers(length):
    """Returns rows of three sequences and padding, of two sequences, and with padding in between.

    Padding fills a block of 64 positions, and the last row.
    """
    numbers = np.zeros((4, length), np.int32)
    numbers[0, : length - 70], numbers[0, 30:50], numbers[0, 50 : length - 70] = 1, 2, 3
    numbers[1], numbers[1, length // 2 + 7 :] = 1, 2
    numbers[2, :20], numbers[2, length - 20 :] = 1, 1
    return numbers


@pytest.mark.parametrize("form", [MEASURED, SECOND])
@pytest.mark.parametrize(
    ("depth", "length", "window"),
    [
        (32, 192, None),
        (16, 256, 30),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(64, 512, None), (64, 1024, 64), (128, 256, None), (128, 320, 70)]
        ),
    ],
)
def test_queries_see_their_own_sequence_and_window(form, depth, length, window):
    """Outputs and gradients are those of plain attention; padding passes nothing on."""
    numbers = make_numbers(length)
    generator = np.random.default_rng(0)
    query, key, value, weight = (
        jnp.asarray(generator.normal(size=(4, length, depth)), jnp.float32) for _ in range(4)
    )
    is_real = numbers[..., None] > 0
    keys = mask_keys(jax.random.key(7), (4, 1))
    seen = numbers[:, :, None] == numbers[:, None]
    if window is not None:
        position = np.arange(length)
        seen &= np.abs(position[:, None] - position) <= window
    bias = np.where(seen, 0, np.finfo(np.float32).min)

    def kernel(*heads):
        options = {"depth": depth, "rate": RATE, "window": window, "form": form}
        return gpu_attention.fused_attention(*heads, numbers, keys, **options, interpret=True)

    def output_and_gradients(function, weight):
        def loss(*heads):
            output = function(*heads)
            return jnp.sum(output * weight), output

        gradients, output = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
        assert all(jnp.isfinite(x).all() for x in (output, *gradients))
        return output * is_real, *gradients

    def plain(*heads):
        return written_out(depth, *heads, bias, keys, RATE)

    found = output_and_gradients(kernel, weight)
    expected = output_and_gradients(plain, weight * is_real)
    for one, other in zip(found, expected, strict=True):
        assert relative(one, other) < 2**-18


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize(("own", "other"), [(64, 64), (128, 64), (32, 128)])
def test_the_blocks_that_programs_read_are_the_fewest_that_hold_all_they_see(window, own, other):
    length = 256
    numbers = make_numbers(length)
    found = gpu_attention.blocks_seen(jnp.asarray(numbers), window, own, other)
    position = np.arange(length)
    near = np.abs(position[:, None] - position) <= (length if window is None else window)
    for row, ranges in zip(numbers, found, strict=True):
        # Without the window inside a block, which no block that it reaches knows.
        seen = (row[:, None] == row) & (row > 0)
        for i, (first, end) in enumerate(ranges.tolist()):
            mine = slice(i * own, (i + 1) * own)
            blocks = [
                j
                for j in range(length // other)
                if (block := (mine, slice(j * other, (j + 1) * other)))
                and seen[block].any()
                and near[block].any()
            ]
            assert (first, end) == ((blocks[0], blocks[-1] + 1) if blocks else (length // other, 0))


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_kernels_run_all_layers_of_an_encoder_with_windows(monkeypatch, in_parts):
    """A global and a local layer read packed rows. Whole attention has the same dropout masks."""
    kernel = mock.Mock(side_effect=functools.partial(gpu_attention.fused_attention, interpret=True))
    monkeypatch.setattr(gpu_attention, "fused_attention", kernel)
    monkeypatch.setattr(attention_module, "_MAX_WHOLE_LENGTH", 0 if in_parts else 512)
    options = {"norm": "pre_and_final", "rope_theta": 500.0, "local_rope_theta": 50.0}
    options |= {"local_attention": 40, "global_every": 2, "dtype": jnp.bfloat16}
    rate = 0.0 if in_parts else RATE
    unfused = BertConfig(10, 128, 2, 2, 64, attention_probs_dropout_prob=rate, **options)
    numbers = jnp.asarray(make_numbers(192)[:2])
    hidden = jnp.asarray(np.random.default_rng(1).normal(size=(2, 192, 128)), jnp.bfloat16)
    init = functools.partial(Encoder(unfused).init, deterministic=True)
    shapes = nn.unbox(jax.eval_shape(init, jax.random.key(0), hidden, numbers))
    weights = randomized(ones_in_norms(shapes), seed=0, scale=0.1)

    @functools.partial(jax.jit, static_argnums=0)
    def output(config):
        rngs = {"dropout": jax.random.key(3)}
        encoder = Encoder(config)
        return encoder.apply(weights, hidden, numbers, False, sequences_per_row=3, rngs=rngs)

    found, expected = output(dataclasses.replace(unfused, fused_attention="gpu")), output(unfused)
    assert relative(found[numbers > 0], expected[numbers > 0]) < 2**-6
    assert [call.kwargs.get("window") for call in kernel.call_args_list] == [None, 20]


@pytest.mark.parametrize(
    ("device_kind", "depth", "length", "window", "form"),
    [
        ("NVIDIA A100", 16, 512, None, None),
        ("NVIDIA H100", 64, 320, None, None),
        ("NVIDIA B200", 128, 512, 64, None),
        ("NVIDIA A100", 32, 512, None, SECOND),
        ("NVIDIA H100", 64, 1024, 64, SECOND),
        ("NVIDIA B200", 128, 320, None, SECOND),
    ],
)
def test_the_kernels_can_be_lowered_for_cuda(device_kind, depth, length, window, form):
    """The measured form has one kernel for the backward pass, the second form has two."""
    (query, key, value, _), bias, keys = make_case(depth, 2, length, "bfloat16")

    def loss(*inputs):
        options = {"depth": depth, "rate": RATE, "window": window, "form": form}
        output = gpu_attention.fused_attention(*inputs, bias, keys, **options)
        return jnp.sum(output.astype(jnp.float32))

    # jax 0.12 asks for a device; nothing is compiled for it.
    device = AbstractDevice(device_kind=device_kind, num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(query, key, value)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    num_kernels = text.count('@"__gpu$xla.gpu.triton"') + text.count("@__gpu$xla.gpu.triton")
    assert num_kernels == (2 if form is None else 3)


@pytest.mark.parametrize("depth", [16, 32, 64, 128])
def test_both_forms_have_kernels_for_all_rows(monkeypatch, depth):
    for is_second in (False, True):
        monkeypatch.setattr(gpu_attention, "_USES_SECOND_FORM", is_second)
        for length, window in ((64, None), (512, None), (1024, 64), (8192, None)):
            form = gpu_attention.find_form(depth, length, window)
            assert form.is_measured != is_second
