"""Small models for the tests of this folder."""

import pytest

from tests.models.common import ODD, pretraining_model
from tests.small import random_batch, random_params


@pytest.fixture(scope="package")
def params():
    return random_params(pretraining_model(ODD), seed=1)


@pytest.fixture(scope="package")
def batch():
    return random_batch(2, batch_size=5, length=13, predictions=3, vocab_size=101)
