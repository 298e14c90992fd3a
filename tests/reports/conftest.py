"""These tests draw their figures."""

import pytest
from matplotlib.figure import Figure

_savefig = Figure.savefig


@pytest.fixture(autouse=True, scope="module")
def drawn_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", _savefig)
        yield
