"""AdamW and LAMB against a plain transcription of DESIGN section 4's formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.training.optimizer import decayed, make_optimizer
from bert_jax.training.trainer import Trainer
from tests.small import flat, small_config

STEPS = 10
SHAPES = {
    "bert": {
        "embeddings": {
            "word_embeddings": (7, 4),
            "layer_norm": {"scale": (4,), "bias": (4,)},
        },
        "layer_0": {
            "attention": {"query_kernel": (4, 2, 2), "query_bias": (2, 2)},
            "attention_layer_norm": {"scale": (4,), "bias": (4,)},
        },
    },
    "mlm": {"transform": {"kernel": (4, 4), "bias": (4,)}, "output_bias": (7,)},
    "zero": {"kernel": (3, 2)},
}
# What section 4 leaves undecayed, written out by hand.
EXCLUDED = {
    "bert/embeddings/layer_norm/scale",
    "bert/embeddings/layer_norm/bias",
    "bert/layer_0/attention/query_bias",
    "bert/layer_0/attention_layer_norm/scale",
    "bert/layer_0/attention_layer_norm/bias",
    "mlm/transform/bias",
    "mlm/output_bias",
}


def rate(step):
    return 0.01 * (1 + step)


def random_tree(rng, scale=1.0):
    return jax.tree.map(
        lambda shape: (scale * rng.standard_normal(shape)).astype(np.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


@pytest.fixture(scope="module")
def start():
    params = random_tree(np.random.default_rng(0))
    params["zero"]["kernel"][:] = 0  # LAMB's ratio is 1 here
    return params


@pytest.fixture(scope="module")
def gradients():
    rng = np.random.default_rng(1)
    # Norms from well below 1, where nothing is clipped, to well above.
    gradients = [random_tree(rng, scale) for scale in (0.02, 1.0, 0.05, 3.0, 0.01) * 2]
    for gradient in gradients[:3]:
        gradient["zero"]["kernel"][:] = 0  # and LAMB's update norm is 0 here, at first
    return gradients


def transcription(start, gradients, *, lamb, bias_correction, max_norm=1.0):
    """Section 4, in float64: one tensor, one line at a time."""
    b1, b2, eps, decay = 0.9, 0.999, 1e-6, 0.01
    params = {name: value.astype(np.float64) for name, value in flat(start).items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradient in enumerate(gradients):
        gradient = {name: value.astype(np.float64) for name, value in flat(gradient).items()}
        norm = math.sqrt(sum((value**2).sum() for value in gradient.values()))
        clip = max_norm / max(norm, max_norm) if max_norm else 1.0
        for name, p in params.items():
            g = gradient[name] * clip
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            m_hat, v_hat = m[name], v[name]
            if bias_correction:
                m_hat = m_hat / (1 - b1 ** (step + 1))
                v_hat = v_hat / (1 - b2 ** (step + 1))
            update = m_hat / (np.sqrt(v_hat) + eps)
            if name not in EXCLUDED:
                update = update + decay * p
            if lamb and name not in EXCLUDED:
                p_norm, u_norm = np.linalg.norm(p), np.linalg.norm(update)
                if p_norm > 0 and u_norm > 0:
                    update = update * (p_norm / u_norm)
            params[name] = p - rate(step) * update
    return params


def run(start, gradients, **settings):
    config = default_config().optimizer
    config.update(settings)
    optimizer = make_optimizer(config, rate)
    params, state = start, optimizer.init(start)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return params


def test_gradients_are_clipped_in_some_steps_only(gradients):
    norms = [math.sqrt(sum((x**2).sum() for x in jax.tree.leaves(g))) for g in gradients]
    assert len(norms) == STEPS and 2 <= sum(norm > 1 for norm in norms) <= STEPS - 2


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_ten_steps_against_the_formulas(start, gradients, name, bias_correction):
    actual = flat(run(start, gradients, name=name, bias_correction=bias_correction))
    expected = transcription(start, gradients, lamb=name == "lamb", bias_correction=bias_correction)
    assert set(actual) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(actual[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_the_formulas_tell_the_variants_apart(start, gradients, name):
    """Each detail moves the result by more than the tolerance above: it is really tested."""
    lamb = name == "lamb"
    exact = transcription(start, gradients, lamb=lamb, bias_correction=False)
    for other in (
        transcription(start, gradients, lamb=not lamb, bias_correction=False),
        transcription(start, gradients, lamb=lamb, bias_correction=True),
        transcription(start, gradients, lamb=lamb, bias_correction=False, max_norm=0),
    ):
        assert max(np.abs(exact[key] - other[key]).max() for key in exact) > 1e-3


def test_no_clipping_where_the_norm_is_zero(start, gradients):
    actual = flat(run(start, gradients, max_grad_norm=0.0))
    expected = transcription(start, gradients, lamb=False, bias_correction=False, max_norm=0)
    for key, value in expected.items():
        np.testing.assert_allclose(actual[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


def test_defaults_are_berts():
    optimizer = default_config().optimizer
    assert optimizer.to_dict() == {
        "name": "adamw",
        "b1": 0.9,
        "b2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.01,
        "bias_correction": False,
        "max_grad_norm": 1.0,
    }


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_scanned_layers_are_optimized_as_single_ones(name):
    """Stacking over layers must not change LAMB: every layer has a ratio of its own."""
    rng = np.random.default_rng(3)
    layers = [rng.standard_normal((4, 3)).astype(np.float32) * 10**i for i in range(3)]
    moves = [rng.standard_normal((4, 3)).astype(np.float32) * 3.0**-i for i in range(3)]
    layers[1][:] = 0
    single = run(
        {f"layer_{i}": {"kernel": layers[i]} for i in range(3)},
        [{f"layer_{i}": {"kernel": moves[i]} for i in range(3)}] * 3,
        name=name,
    )
    stacked = run(
        {"layers": {"layer": {"kernel": np.stack(layers)}}},
        [{"layers": {"layer": {"kernel": np.stack(moves)}}}] * 3,
        name=name,
    )["layers"]["layer"]["kernel"]
    for i in range(3):
        np.testing.assert_allclose(stacked[i], single[f"layer_{i}"]["kernel"], rtol=1e-6)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_which_parameters_of_the_model_are_decayed(scan_layers):
    params = Trainer.from_config(small_config(scan_layers=scan_layers)).abstract_state().params
    mask = {
        jax.tree_util.keystr(path, simple=True, separator="/"): value
        for path, value in jax.tree_util.tree_leaves_with_path(decayed(params))
    }
    layers = ["layers/layer"] if scan_layers else ["layer_0", "layer_1"]
    expected = {
        *(f"bert/embeddings/{table}_embeddings" for table in ("word", "position", "token_type")),
        *(
            f"bert/encoder/{layer}/{kernel}"
            for layer in layers
            for kernel in (
                *(f"attention/{name}_kernel" for name in ("query", "key", "value", "output")),
                "intermediate/kernel",
                "output/kernel",
            )
        ),
        "bert/pooler/dense/kernel",
        "mlm/transform/kernel",
        "nsp/dense/kernel",
    }
    assert {name for name, value in mask.items() if value} == expected
    rest = {name for name, value in mask.items() if not value}
    assert all(name.endswith(("bias", "scale")) for name in rest)
    # 8 tensors outside the blocks, 10 in each: none is forgotten.
    assert len(rest) == 8 + 10 * len(layers), sorted(rest)
