"""What makes the runs of these tests cheaper."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """Processes find what those before them compiled: most of the time of such small runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield
