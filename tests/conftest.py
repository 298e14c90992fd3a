"""Fixtures and settings of all tests."""

import gc
import importlib.metadata
import importlib.util
import os
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests.browser import NAMES, Browser, find_browser

# Compilation takes much of the time of these tests. All processes of a session, including those of
# pytest-xdist, share the compiled programs.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _compiled = tempfile.TemporaryDirectory(prefix="bert_jax_compiled_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# These programs run for milliseconds: without optimization they compile in a quarter of the time.
_flags = [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0"]
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # The newer code generator takes three times as long. Later versions have no other.
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(_flags).strip()

# Without bytecode, each of the many processes would compile all the modules that it imports, which
# takes 7 seconds, and 10 more with TensorFlow. Containers often set this variable.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell's background jobs ignore SIGINT, and the processes of these tests would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# JAX's traces consist of many long-lived objects, which the collector would visit all the time.
gc.set_threshold(100_000, 50, 100)

# A busy machine must not fail a property test. Each run of the tests draws other examples.
hypothesis.settings.register_profile("tests", deadline=None, max_examples=50)
hypothesis.settings.load_profile("tests")

_DEFAULT = Path(__file__).parent.parent.parent / "shared" / "data"


def pytest_addoption(parser):
    parser.addoption("--no-skips", action="store_true", help="make each skip a failure")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return _without_skip((yield), item.config)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _without_skip((yield), collector.config)


def _without_skip(report, config):
    if report.skipped and config.getoption("no_skips"):
        _, _, reason = report.longrepr
        report.outcome, report.longrepr = "failed", f"{reason} (--no-skips)"
    return report


def pytest_sessionfinish():
    # pytest's last collections would visit all that JAX holds, which takes seconds.
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def cheap_runs():
    from tests import cheap

    with cheap.figures(drawn=False), cheap.shared_steps(), cheap.unsynced_files():
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Returns the directory of real corpora and vocabularies; skips the test if there is none."""
    path = Path(os.environ.get("BERT_JAX_DATA", _DEFAULT))
    if not path.is_dir():
        pytest.skip(f"no data at {path}; set BERT_JAX_DATA to where they are")
    return path


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> str:
    """Writes twelve short documents, which tests must not change; returns their glob."""
    from tests.small_run import write_documents

    return write_documents(tmp_path_factory.mktemp("texts"), 12)


@pytest.fixture(scope="session")
def finished(texts, tmp_path_factory) -> Path:
    """Returns the work directory of a finished run of six steps, which tests must not change."""
    from bert_jax.commands.pretrain import pretrain
    from tests.small_run import small_run

    directory = tmp_path_factory.mktemp("finished") / "run"
    assert pretrain(small_run(texts), directory)["step"] == 6
    return directory


@pytest.fixture(scope="module")
def speeches(tmp_path_factory) -> str:
    """Writes the beginnings of 60 speeches; returns their glob."""
    from tests.stores import write_speeches

    return write_speeches(tmp_path_factory.mktemp("corpus") / "texts", 60)


@pytest.fixture(scope="module")
def store(speeches, tmp_path_factory):
    """Returns the metadata and the directory of a token store of the speeches."""
    from tests.stores import make, options

    output = tmp_path_factory.mktemp("stores") / "store"
    return make(options(speeches), output), output


@pytest.fixture
def refusal(monkeypatch, capfd):
    """Returns a function that runs an action like a command and returns its error message."""
    from bert_jax.config import cli
    from tests.refusals import one_sentence

    def run(action) -> str:
        monkeypatch.setattr(sys, "argv", ["command"])
        monkeypatch.setattr(os, "_exit", sys.exit)
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.run(lambda _: action() and None)
        return one_sentence(stopped.value.code, capfd.readouterr().err)

    return run


@pytest.fixture(scope="session")
def tensorflow() -> None:
    """Skips the test on a Python that has no release of TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")


@pytest.fixture
def without_tensorflow(monkeypatch) -> None:
    """Makes the import of TensorFlow fail, as on a Python that has no release of it."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "bert_jax.base.lean_tensorflow", raising=False)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Browser:
    """Returns a real browser; skips the test if there is none."""
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is on the PATH")
    return Browser(program, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="session")
def gcs_server():
    """Serves Google Cloud Storage; returns the environment that points to it, and its buckets."""
    pytest.importorskip("gcsfs", reason="needs pip install -e '.[gcs]'")
    from tests.fake_gcs import serve

    with serve() as server:
        yield server


@pytest.fixture
def bucket(gcs_server, monkeypatch) -> str:
    """Returns the name of an empty bucket; the clients of this process use its server."""
    environment, buckets = gcs_server
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{len(buckets)}"
    buckets[name] = {}
    return name
