"""Opens data sets of TensorFlow Datasets. Opening the first one imports TensorFlow."""

from collections.abc import Iterator
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.base.files import first_line

TFDS_PREFIX = "tfds:"


def open_builder(source: str) -> Any:
    """Returns the builder of "tfds:NAME" without downloading data.

    Raises:
      UserError: There is no such data set or version, or no TensorFlow, which TFDS reads with.
    """
    import tensorflow_datasets as tfds

    # Raises UserError before anything is downloaded.
    import bert_jax.base.lean_tensorflow  # noqa: F401

    name = source.removeprefix(TFDS_PREFIX)
    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError:
        raise UserError(f"TensorFlow Datasets has no data set {name!r}") from None
    # TFDS raises AssertionError for an unknown version.
    except (ValueError, AssertionError) as error:
        raise _cannot_load(name, error) from None


def download(builder: Any) -> None:
    """Downloads and prepares a data set unless it is on disk.

    Raises:
      UserError: The data set needs a package that is not installed.
    """
    try:
        builder.download_and_prepare()
    except ImportError as error:
        raise UserError(f"cannot prepare {builder.name!r}: {error}: install it") from None
    except (ValueError, AssertionError) as error:
        raise _cannot_load(builder.name, error) from None


def check_split(builder: Any, split: str) -> None:
    """Raises UserError if a data set, whose data are on disk, lacks a split."""
    if split not in (splits := builder.info.splits):
        raise UserError(
            f"{builder.info.full_name} has no split {split!r}; its splits: {', '.join(splits)}"
        )


def open_split(builder: Any, split: str) -> Any:
    """Returns a split as a tf.data.Dataset, in the order on disk."""
    try:
        return builder.as_dataset(split=split, shuffle_files=False)
    except ValueError as error:
        raise _cannot_load(builder.info.full_name, error) from None


def texts(builder: Any, name: str, field: str) -> Iterator[bytes]:
    """Yields a field of the training examples.

    Raises:
      UserError: There is no such field, or it is not a text.
    """
    from bert_jax.base.lean_tensorflow import tf

    download(builder)
    dataset = open_split(builder, "train")
    features = dataset.element_spec
    if not isinstance(features, dict) or field not in features:
        known = ", ".join(sorted(features)) if isinstance(features, dict) else "none"
        raise UserError(
            f"{TFDS_PREFIX}{name} has no field {field!r}; its fields: {known}; "
            f"write {TFDS_PREFIX}{name}:FIELD"
        )
    if features[field].dtype != tf.string or features[field].shape.rank != 0:
        raise UserError(f"field {field!r} of {TFDS_PREFIX}{name} is not a text")
    for example in dataset.as_numpy_iterator():
        yield example[field]


def _cannot_load(name: str, error: Exception) -> UserError:
    return UserError(f"cannot load {name!r}: {first_line(error)}")
