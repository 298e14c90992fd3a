"""TensorFlow as `tf`, without its greetings and without Keras."""

import os

# What it says about CPU features is no news to the user; and JAX has set 1, at which it
# tells of every bad file before we do.
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# No operation of ours is one of these kernels', of which it would tell at length.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# TensorFlow imports Keras, and Keras pandas: half of the seconds that it takes, and 80 MB.
# Asked for the old Keras, a package of its own that hardly anyone has, it goes on without;
# afterwards the user's own `tf.keras` is what it would have been.
_KERAS = "TF_USE_LEGACY_KERAS"
_keras_is_asked_for = _KERAS in os.environ
os.environ.setdefault(_KERAS, "1")
import tensorflow as tf  # noqa: E402

if not _keras_is_asked_for:
    del os.environ[_KERAS]

__all__ = ["tf"]
