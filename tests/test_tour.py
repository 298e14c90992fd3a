"""The notebook of the documentation runs from top to bottom."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tour.ipynb"


@pytest.mark.slow
def test_the_tour_runs_and_learns():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=1800).execute()
    printed = {
        cell.source: output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("stream", "execute_result")
    }
    by_start = {source.splitlines()[-1]: output for source, output in printed.items()}
    filled = by_start['bert.fill_mask("The people of the United [MASK] are free.")']
    assert "states" in filled.data["text/plain"]
    assert "accuracy" in by_start["scores"].data["text/plain"]
