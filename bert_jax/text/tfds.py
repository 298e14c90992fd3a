"""Opens data sets of TensorFlow Datasets. Opening the first one imports TensorFlow."""

from collections.abc import Iterator
from typing import Any

from bert_jax.base.errors import UserError

TFDS_PREFIX = "tfds:"


def open_builder(name: str) -> Any:
    """Returns the builder of a data set without downloading data."""
    import tensorflow_datasets as tfds

    # Fails before anything is downloaded if there is no TensorFlow.
    import bert_jax.base.lean_tensorflow  # noqa: F401

    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        # The text of the exception is a list of all data sets.
        raise UserError(f"TensorFlow Datasets has no data set {name!r}") from None


def texts(builder: Any, name: str, field: str) -> Iterator[bytes]:
    """Yields a field of the training examples, in the order on disk."""
    from bert_jax.base.lean_tensorflow import tf

    builder.download_and_prepare()
    dataset = builder.as_dataset(split="train", shuffle_files=False)
    features = dataset.element_spec
    known = [key for key, spec in features.items() if spec == tf.TensorSpec([], tf.string)]
    if field not in known:
        raise UserError(
            f"{TFDS_PREFIX}{name} has no text in a field {field!r}; the fields with texts: "
            f"{', '.join(known)}; write {TFDS_PREFIX}{name}:FIELD"
        )
    for example in dataset.as_numpy_iterator():
        yield example[field]
