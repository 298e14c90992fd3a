"""The optimizers against their formulas, or against their authors' code."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.config import default_config
from bert_jax.models.layers import Matrix, matrices
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.state import abstract_params
from tests.golden.inputs import FOLDER
from tests.small import flat, small_config

STEPS, VOCAB_SIZE = 10, 7
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
# The parameters without weight decay, listed by hand.
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
    params["zero"]["kernel"][:] = 0  # LAMB's ratio is 1 here.
    return params


@pytest.fixture(scope="module")
def gradients():
    rng = np.random.default_rng(1)
    # The norms range from well below 1, where nothing is clipped, to well above 1.
    gradients = [random_tree(rng, scale) for scale in (0.02, 1.0, 0.05, 3.0, 0.01) * 2]
    for gradient in gradients[:3]:
        gradient["zero"]["kernel"][:] = 0  # LAMB's update norm is 0 here at first.
    return gradients


def by_hand(
    start,
    gradients,
    *,
    name,
    bias_correction,
    max_grad_norm,
    decay_all=False,
    eps_before_correction=False,
):
    """Applies the formulas in float64, one tensor at a time."""
    lamb = name == "lamb"
    b1, b2, eps, decay = 0.9, 0.999, 1e-6, 0.01
    params = {name: value.astype(np.float64) for name, value in flat(start).items()}
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradient in enumerate(gradients):
        gradient = {name: value.astype(np.float64) for name, value in flat(gradient).items()}
        norm = math.sqrt(sum((value**2).sum() for value in gradient.values()))
        clip = max_grad_norm / max(norm, max_grad_norm) if max_grad_norm else 1.0
        for name, p in params.items():
            g = gradient[name] * clip
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g**2
            m_hat, v_hat = m[name], v[name]
            if bias_correction:
                m_hat = m_hat / (1 - b1 ** (step + 1))
                v_hat = v_hat / (1 - b2 ** (step + 1))
            update = m_hat / (np.sqrt(v_hat) + eps)
            if eps_before_correction:  # The order of fairseq's adam.py.
                size = math.sqrt(1 - b2 ** (step + 1)) / (1 - b1 ** (step + 1))
                update = size * m[name] / (np.sqrt(v[name]) + eps)
            if decay_all or name not in EXCLUDED:
                update = update + decay * p
            if lamb and name not in EXCLUDED:
                p_norm, u_norm = np.linalg.norm(p), np.linalg.norm(update)
                if p_norm > 0 and u_norm > 0:
                    update = update * (p_norm / u_norm)
            params[name] = p - rate(step) * update
    return params


def run(start, gradients, weight_decay=None, **settings):
    return trajectory(start, gradients, weight_decay, **settings)[-1]


def trajectory(start, gradients, weight_decay=None, matrices=None, **settings):
    """Returns the parameters after each step."""
    config = default_config().optimizer
    config.update(settings)
    optimizer = make_optimizer(
        config,
        rate,
        weight_decay or config.weight_decay,
        VOCAB_SIZE,
        matrices=matrices or {},
    )
    params, state, found = start, optimizer.init(start), []

    @jax.jit
    def update(gradient, state, params, step):
        updates, state = optimizer.update(gradient, state, params, step=step)
        return jax.tree.map(jnp.add, params, updates), state

    for step, gradient in enumerate(gradients):
        params, state = update(gradient, state, params, step)
        found.append(params)
    return found


VARIANTS = [
    {"name": name, "bias_correction": bias_correction, "max_grad_norm": 1.0}
    for name in ("adamw", "lamb")
    for bias_correction in (False, True)
] + [
    {"name": "adamw", "bias_correction": False, "max_grad_norm": 0.0},
    ROBERTA := {
        "name": "adamw",
        "bias_correction": True,
        "max_grad_norm": 0.0,
        "decay_all": True,
        "eps_before_correction": True,
    },
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_ten_steps_follow_the_formulas(start, gradients, variant):
    actual = flat(run(start, gradients, **variant))
    expected = by_hand(start, gradients, **variant)
    assert set(actual) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(actual[key], value, rtol=2e-5, atol=2e-6, err_msg=key)


def test_the_place_of_eps_matters_for_small_gradients(start, gradients):
    """After one step, sqrt(1 - b2) is 0.03, so eps before the correction counts 32 times."""
    small = [jax.tree.map(lambda x: 1e-5 * x, gradients[1])]
    first = flat(run(start, small, **ROBERTA))
    later = flat(run(start, small, **ROBERTA | {"eps_before_correction": False}))
    expected = by_hand(start, small, **ROBERTA)
    name = "bert/embeddings/word_embeddings"
    np.testing.assert_allclose(first[name], expected[name], rtol=2e-6)
    assert np.abs(first[name] - later[name]).max() > 1e-3


def test_ten_steps_of_stable_adamw_are_those_of_its_authors():
    with np.load(FOLDER / "stable_adamw.npz") as golden:
        golden = dict(golden)

    def tree(prefix):
        flat = {k: v for k, v in golden.items() if k.startswith(f"{prefix}/")}
        return unflatten_dict(flat, sep="/")[prefix]

    settings = {"b2": 0.98, "bias_correction": True, "max_grad_norm": 0.0, "weight_decay": 0.3}
    gradients = [tree(f"gradient_{step}") for step in range(STEPS)]
    for name, tolerance in (("stable_adamw", 2e-6), ("adamw", None)):
        found = trajectory(tree("start"), gradients, name=name, **settings)
        for step in (0, 3, 9):
            ours, theirs = flat(found[step]), flat(tree(f"step_{step}"))
            worst = max(np.abs(ours[key] - theirs[key]).max() for key in theirs)
            if tolerance:
                assert worst < tolerance, step
    # In the end, the limit has made a difference.
    assert worst > 0.01


def test_stable_adamw_limits_the_tensors_of_modernbert():
    """Parts of one tensor have one limit; rows that only pad the vocabulary do not count."""
    rng = np.random.default_rng(7)
    first, second = rng.standard_normal((2, VOCAB_SIZE, 4, 2)).astype(np.float32)
    # The parts differ in how much their gradients grow, and so would their limits.
    growth = ((0.1, 1.0), (3.0, 1.5))

    def moves(tree_of):
        start = tree_of(first, second)
        steps = [tree_of(a * first, b * second) for a, b in growth]
        settings = {"bias_correction": True, "max_grad_norm": 0.0}
        return flat(run(start, steps, name="stable_adamw", **settings))

    def split(a, b):
        return {
            "attention": {"query_kernel": a, "key_kernel": b},
            "layer_0": {"intermediate": {"kernel": a}, "gate": {"kernel": b}},
            "embeddings": {"word_embeddings": np.pad(a[:, 0], ((0, 5), (0, 0)))},
        }

    def joint(a, b):
        return {"dense": {"kernel": np.stack([a, b])}, "table": {"kernel": a[:, 0]}}

    ours, theirs = moves(split), moves(joint)
    parts = {"attention/query_kernel": 0, "attention/key_kernel": 1}
    parts |= {"layer_0/intermediate/kernel": 0, "layer_0/gate/kernel": 1}
    for name, part in parts.items():
        np.testing.assert_allclose(ours[name], theirs["dense/kernel"][part], atol=1e-6)
    table = ours["embeddings/word_embeddings"]
    np.testing.assert_allclose(table[:VOCAB_SIZE], theirs["table/kernel"], atol=1e-6)


def test_muon_is_optaxs_own_in_the_blocks_and_adamw_elsewhere():
    """With our rates, decay and Adam.

    Heads and their depth are one axis of the matrix. Each expert is a matrix; the name of their
    parameter plays no role.
    """
    rng = np.random.default_rng(5)
    shapes = {
        "embeddings": {"word_embeddings": (9, 4)},
        "encoder": {
            "layer_0": {
                "attention": {"query_kernel": (4, 2, 3), "output_kernel": (2, 3, 4)},
                "intermediate": {"kernel": (4, 8), "bias": (8,)},
                "experts": {"inner": (3, 4, 8)},
                "attention_layer_norm": {"scale": (4,)},
            }
        },
        "pooler": {"dense": {"kernel": (4, 4)}},
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    start, *gradients = (
        jax.tree.map(lambda s: rng.standard_normal(s).astype(np.float32), shapes, is_leaf=is_shape)
        for _ in range(6)
    )
    settings = {"weight_decay": 0.1, "bias_correction": True, "max_grad_norm": 0.0}
    axes = {
        "encoder/layer_0/attention/query_kernel": ((0,), (1, 2)),
        "encoder/layer_0/attention/output_kernel": ((0, 1), (2,)),
        "encoder/layer_0/intermediate/kernel": ((0,), (1,)),
        "encoder/layer_0/experts/inner": ((1,), (2,)),
        "pooler/dense/kernel": ((0,), (1,)),
    }
    boxes = {
        name: Matrix(None, (), inputs=inputs, outputs=outputs)
        for name, (inputs, outputs) in axes.items()
    }
    muon = flat(run(start, gradients, matrices=boxes, name="muon", momentum=0.9, **settings))
    adamw = flat(run(start, gradients, name="adamw", **settings))
    sizes = {
        "encoder/layer_0/attention/query_kernel": (1, 4, 6),
        "encoder/layer_0/attention/output_kernel": (1, 6, 4),
        "encoder/layer_0/intermediate/kernel": (1, 4, 8),
        "encoder/layer_0/experts/inner": (3, 4, 8),
    }
    for name, value in adamw.items():
        if name not in sizes:
            np.testing.assert_array_equal(muon[name], value, err_msg=name)

    optimizer = optax.contrib.muon(rate, beta=0.9, weight_decay=0.1, consistent_rms=0.2)
    reshaped = lambda tree: {  # noqa: E731
        name: list(flat(tree)[name].reshape(size)) for name, size in sizes.items()
    }
    params = reshaped(start)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(reshaped(gradient), state, params)
        params = optax.apply_updates(params, updates)
    for name, shape in sizes.items():
        ours = muon[name].reshape(shape)
        np.testing.assert_allclose(ours, params[name], rtol=1e-5, atol=1e-6, err_msg=name)
        assert np.abs(ours - adamw[name].reshape(shape)).max() > 0.01


@pytest.mark.parametrize(
    "name",
    ["adamw", "muon", *(pytest.param(x, marks=pytest.mark.slow) for x in ("stable_adamw", "lamb"))],
)
def test_the_weight_decay_may_follow_the_step(start, gradients, name):
    def decay(step):
        return jnp.where(step < 2, 0.3, 0.0)

    scheduled = flat(run(start, gradients[:4], decay, name=name))
    config = default_config().optimizer
    config.update(name=name)
    # The state is the same for both kinds, so that a run can change from one to the other.
    constant, changing = (make_optimizer(config, rate, d, VOCAB_SIZE) for d in (0.3, decay))
    updates_of = [jax.jit(optimizer.update) for optimizer in (constant, changing)]
    params, state = start, constant.init(start)
    for step, gradient in enumerate(gradients[:4]):
        updates, state = updates_of[step >= 2](gradient, state, params, step=step)
        params = jax.tree.map(jnp.add, params, updates)
    for key, value in flat(params).items():
        np.testing.assert_allclose(scheduled[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    whole = flat(run(start, gradients[:4], 0.3, name=name))
    assert np.abs(whole["mlm/transform/kernel"] - scheduled["mlm/transform/kernel"]).max() > 1e-3


def test_which_parameters_muon_moves():
    model = make_trainer(small_config()).model
    axes = {
        name: (matrix.inputs, matrix.outputs)
        for name, matrix in matrices(abstract_params(model)).items()
    }
    expected = {
        "attention/query_kernel": ((0,), (1, 2)),
        "attention/key_kernel": ((0,), (1, 2)),
        "attention/value_kernel": ((0,), (1, 2)),
        "attention/output_kernel": ((0, 1), (2,)),
        "intermediate/kernel": ((0,), (1,)),
        "output/kernel": ((0,), (1,)),
    }
    assert {name: value for name, value in axes.items() if "/encoder/" in name} == {
        f"bert/encoder/{layer}/{name}": value
        for layer in ("layer_0", "layer_1")
        for name, value in expected.items()
    }
