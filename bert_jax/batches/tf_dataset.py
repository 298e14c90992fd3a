"""Wraps a generator of finished batches in tf.data.

The generator does all the work, including prefetching, because threads of tf.data could call
Python while the interpreter exits.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping

import numpy as np

Batch = dict[str, np.ndarray]
# The shape and the dtype of each array.
Signature = Mapping[str, tuple[tuple[int, ...], str]]


class BatchIterator(Iterator[Batch]):
    """Iterates over batches through tf.data, and raises errors of `make_batches` unchanged.

    Attributes:
      close: Ends the iteration and releases its threads. It also runs when the iterator is no
        longer used, and before the interpreter exits: tf.data calls Python to end a generator,
        and after the exit that call would never return.
    """

    def __init__(self, make_batches: Callable[[], Iterator[Batch]], signature: Signature):
        self._elements = _elements(make_batches, signature)
        self.close = weakref.finalize(self, self._elements.close)

    def __next__(self) -> Batch:
        return next(self._elements)


def _elements(make_batches: Callable[[], Iterator[Batch]], signature: Signature) -> Iterator[Batch]:
    # Importing TensorFlow takes seconds.
    from bert_jax.base.lean_tensorflow import hide_accelerators, tf

    hide_accelerators()
    specs = {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in signature.items()}
    errors: list[Exception] = []

    def until_error() -> Iterator[Batch]:
        # tf.data would replace an error with its own. Instead, the data ends, and the error is
        # raised below.
        try:
            yield from make_batches()
        except Exception as error:
            errors.append(error)

    dataset = tf.data.Dataset.from_generator(until_error, output_signature=specs)
    yield from dataset.as_numpy_iterator()
    if errors:
        raise errors[0]
