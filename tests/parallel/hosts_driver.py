"""Runs `bert_jax.main` as one process of several, with hooks for test_multihost.py.

    HOSTS_TEST='{"reads": FILE, "step_seconds": 0.1}' python -m tests.parallel.hosts_driver FLAGS

`reads` names a JSON file for the number of bytes of tokens that the rows of each split take.
`step_seconds` is a pause after each step, which lets a test interrupt the middle of a run.
`heartbeat_seconds` and `join_seconds` replace the constants, `version` that of the package.
"""

import atexit
import json
import os
import time
from pathlib import Path

import bert_jax
from bert_jax import main
from bert_jax.config import cli


def count_reads(file: str) -> None:
    from bert_jax.batches import corpus_report
    from bert_jax.store.part import token_dtype
    from bert_jax.store.token_store import TokenStore

    read = {"train": 0, "heldout": 0}
    tokens_at = TokenStore.tokens_at

    def counted(store, positions):
        itemsize = token_dtype(len(store.token_counts)).itemsize
        # Every process plans all rows, for which it looks at a few tokens of each long sentence.
        is_of_rows = positions.ndim == 1
        read[Path(store.directory).name] += is_of_rows * positions.size * itemsize
        return tokens_at(store, positions)

    TokenStore.tokens_at = counted
    measure = corpus_report.measure

    def measured(*args):
        # The report on the corpus reads a sample of it in the first process.
        TokenStore.tokens_at = tokens_at
        try:
            return measure(*args)
        finally:
            TokenStore.tokens_at = counted

    corpus_report.measure = measured
    atexit.register(lambda: Path(file).write_text(json.dumps(read)))


def slow_down(seconds: float) -> None:
    from bert_jax.training.recorder import Recorder

    dispatched = Recorder.dispatched

    def slowly(*args, **options):
        dispatched(*args, **options)
        time.sleep(seconds)

    Recorder.dispatched = slowly


def run(argv: list[str]) -> None:
    options = json.loads(os.environ.get("HOSTS_TEST", "{}"))
    if "reads" in options:
        count_reads(options["reads"])
    if "step_seconds" in options:
        slow_down(options["step_seconds"])
    if "heartbeat_seconds" in options:
        from bert_jax.parallel import multihost

        multihost.HEARTBEAT_SECONDS = options["heartbeat_seconds"]
    if "join_seconds" in options:
        from bert_jax.parallel import multihost

        multihost.JOIN_SECONDS = options["join_seconds"]
    bert_jax.__version__ = options.get("version", bert_jax.__version__)
    main.main(argv)


if __name__ == "__main__":
    main.define_flags()
    cli.run(run)
