"""What several tests need."""

import os
from pathlib import Path

import pytest

# Nearly all the time of these tests goes into compiling small programs once. Whole
# runs (runs.py) compile as a user's do.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"
).strip()

_DEFAULT = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and vocabularies; a test that needs them is skipped without them."""
    path = Path(os.environ.get("BERT_JAX_DATA", _DEFAULT))
    if not path.is_dir():
        pytest.skip(f"no data at {path}; set BERT_JAX_DATA to where they are")
    return path
