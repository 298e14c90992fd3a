"""What several tests need."""

import os
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Nearly all the time of these tests goes into compiling small programs once. Whole
# runs (runs.py) compile as a user's do, but each program once only: what one process has
# compiled all others of this session find here, those of pytest-xdist too.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="bert_jax_compiled_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
# These programs run for milliseconds: without optimization they compile in a sixth of the time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
    ]
).strip()

# A shell's background jobs ignore Ctrl-C, and hand that down to the processes of these tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine must not fail a property test.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

_DEFAULT = Path(__file__).parent.parent.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and vocabularies; a test that needs them is skipped without them."""
    path = Path(os.environ.get("BERT_JAX_DATA", _DEFAULT))
    if not path.is_dir():
        pytest.skip(f"no data at {path}; set BERT_JAX_DATA to where they are")
    return path


@pytest.fixture(scope="session")
def gcs_server():
    """A Google Cloud Storage in this process: the environment that leads to it, its buckets."""
    pytest.importorskip("gcsfs", reason="needs pip install -e '.[gcs]'")
    from tests.fake_gcs import serve

    with serve() as server:
        yield server


@pytest.fixture
def bucket(gcs_server, monkeypatch) -> str:
    """The name of an empty bucket; this process's clients are led to it."""
    environment, buckets = gcs_server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{len(buckets)}"
    buckets[name] = {}
    return name
