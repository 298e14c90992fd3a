"""These tests draw their figures."""

import pytest

from tests import cheap


@pytest.fixture(autouse=True, scope="module")
def drawn_figures():
    with cheap.figures(drawn=True):
        yield
