"""Small TFRecord files in google-research/bert's format, and the config of a run on them."""

from bert_jax.base.lean_tensorflow import tf
from bert_jax.config import default_config

VOCAB = 40


def features(number=0, length=16, slots=3):
    """Returns the values of a record, which differ for each `number`."""
    ids = [2, *(5 + (number + i) % (VOCAB - 5) for i in range(length - 1))]
    return {
        "input_ids": ids,
        "input_mask": [1] * length,
        "segment_ids": [0] * 5 + [1] * (length - 5),
        "masked_lm_positions": [*range(1, slots + 1)],
        "masked_lm_ids": [9] * slots,
        "masked_lm_weights": [1.0] * slots,
        "next_sentence_labels": [number % 2],
    }


def serialized(values, extra=()):
    example = tf.train.Example()
    for name, column in [*values.items(), *extra]:
        kind = "float_list" if column and isinstance(column[0], float) else "int64_list"
        getattr(example.features.feature[name], kind).value.extend(column)
    return example.SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record if isinstance(record, bytes) else serialized(record))
    return path


def data_of(vocab, data_input, **changes):
    data = default_config().data
    data.format, data.vocab, data.input = "google_tfrecord", str(vocab), (str(data_input),)
    data.update(changes)
    return data
