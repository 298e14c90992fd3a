"""Worker processes: what they raise reaches the main process."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.base.processes import worker_processes


def fail(error, *arguments):
    raise error(*arguments)


class Panic(BaseException):
    """Cannot be sent to another process, like a panic of a library in Rust."""

    def __reduce__(self):
        raise TypeError("no such module")


def test_errors_of_workers():
    with worker_processes(1) as pool:
        for error, arguments, raised, text in (
            (UserError, ("it is wrong",), UserError, "^it is wrong$"),
            (Panic, ("out of bounds",), RuntimeError, "^Panic: out of bounds$"),
        ):
            with pytest.raises(raised, match=text):
                pool.submit(fail, error, *arguments).result()
        with pytest.raises(RuntimeError, match="^Panic: out of bounds$"):
            list(pool.map(fail, [Panic], ["out of bounds"]))
        # The pool still works.
        assert pool.submit(len, "abc").result() == 3
