"""Small models for the tests of this folder."""

import pytest

from tests.models.common import ODD, init
from tests.small import random_batch, randomized


@pytest.fixture(scope="package")
def params():
    return randomized(init(ODD), seed=1)


@pytest.fixture(scope="package")
def batch():
    return random_batch(2, batch_size=5, length=13, predictions=3, vocab_size=101)
