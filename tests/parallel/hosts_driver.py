"""`python -m bert_jax.main`, watched: run by test_hosts.py, one process of several.

    HOSTS_TEST='{"reads": FILE, "step_seconds": 0.1}' python -m tests.parallel.hosts_driver FLAGS

`reads` gets, as JSON, the bytes read of each split's tokens; `step_seconds` is slept after
each step, so that a test can hit the middle of a run, and `prepare_seconds` before the
corpus is read, when the file `preparing` appears; `join_seconds` and `lost_seconds`
stand in for the constants.
"""

import atexit
import json
import os
from pathlib import Path

from bert_jax import cli, main
from bert_jax.parallel import launch

OPTIONS = json.loads(os.environ.get("HOSTS_TEST", "{}"))


def count_reads(file: str) -> None:
    from bert_jax.data.store import TokenStore, token_dtype

    read = {"train": 0, "heldout": 0}
    tokens_at = TokenStore.tokens_at

    def counted(store, positions):
        itemsize = token_dtype(len(store.token_counts)).itemsize
        read[Path(store.directory).name] += positions.size * itemsize
        return tokens_at(store, positions)

    TokenStore.tokens_at = counted
    atexit.register(lambda: Path(file).write_text(json.dumps(read)))


def slow_down(seconds: float) -> None:
    import time

    from bert_jax.training.recorder import Recorder

    dispatched = Recorder.dispatched

    def slowly(*args):
        dispatched(*args)
        time.sleep(seconds)

    Recorder.dispatched = slowly


def prepare_slowly(seconds: float) -> None:
    import time

    from bert_jax import prepare

    open_corpus = prepare.open_corpus

    def slowly(*args):
        corpus = open_corpus(*args)
        Path(OPTIONS["preparing"]).touch()
        time.sleep(seconds)
        return corpus

    prepare.open_corpus = slowly


def run(argv: list[str]) -> None:
    if "BERT_JAX_WATCHED_BY" in os.environ:  # Not in the parent that only watches.
        if "reads" in OPTIONS:
            count_reads(OPTIONS["reads"])
        if "prepare_seconds" in OPTIONS:
            prepare_slowly(OPTIONS["prepare_seconds"])
        if "step_seconds" in OPTIONS:
            slow_down(OPTIONS["step_seconds"])
    main.main(argv)


if __name__ == "__main__":
    launch.JOIN_SECONDS = OPTIONS.get("join_seconds", launch.JOIN_SECONDS)
    launch.LOST_SECONDS = OPTIONS.get("lost_seconds", launch.LOST_SECONDS)
    main.define_flags()
    cli.run(run)
