"""TensorFlow as `tf`, without its start-up messages and without Keras."""

import os

# TensorFlow's messages about CPU features do not help users. JAX sets level 1, at which TensorFlow
# reports every bad file before this package does.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# This package uses no oneDNN kernels, which TensorFlow announces at length.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# TensorFlow imports Keras, and Keras imports pandas: half of the import time, and 80 MB. This
# variable selects the old Keras, a separate package that few have installed; if it is missing,
# TensorFlow continues without Keras. Removing the variable afterwards keeps the user's `tf.keras`.
_KERAS = "TF_USE_LEGACY_KERAS"
_user_chose_keras = _KERAS in os.environ
os.environ.setdefault(_KERAS, "1")
try:
    import tensorflow as tf
finally:
    if not _user_chose_keras:
        del os.environ[_KERAS]

__all__ = ["tf"]


def hide_accelerators() -> None:
    """Keeps TensorFlow, which only feeds batches, from taking the memory that JAX needs."""
    for kind in ("GPU", "TPU"):
        if tf.config.list_physical_devices(kind):
            try:
                tf.config.set_visible_devices([], kind)
            except RuntimeError:
                pass  # TensorFlow is already running, with devices that the caller chose.
