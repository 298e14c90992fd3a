"""Rows on disk, and the stream over them: every row once an epoch, also after interruptions."""

import itertools

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.data.static_rows import RowsWriter, StaticRows
from bert_jax.data.static_stream import StaticStream
from bert_jax.data.stream import StreamSpec
from bert_jax.errors import UserError
from bert_jax.tokenizers import SPECIAL_TOKENS

LENGTH, SLOTS, VOCAB = 16, 3, 30


def make_columns(count, length=LENGTH, slots=SLOTS, first=0, seed=0):
    """Rows that tell by `record` which they are."""
    rng = np.random.default_rng([seed, length, first])
    positions = np.tile(np.arange(1, slots + 1), (count, 1))
    ids = rng.integers(5, VOCAB, (count, length))
    ids[:, 0] = 2
    return {
        "input_ids": ids,
        "token_type_ids": rng.integers(0, 2, (count, length)),
        "attention_mask": np.ones((count, length), int),
        "masked_lm_positions": positions,
        "masked_lm_ids": rng.integers(5, VOCAB, (count, slots)),
        "masked_lm_weights": rng.choice([0.0, 1.0], (count, slots)),
        "next_sentence_labels": rng.integers(0, 2, count),
        "source": np.zeros(count, int),
        "record": np.arange(first, first + count),
    }


def write(directory, *parts):
    vocabulary = directory / "vocab.txt"
    directory.mkdir(exist_ok=True)
    tokens = [*SPECIAL_TOKENS, *(chr(ord("a") + i) for i in range(VOCAB - 5))]
    vocabulary.write_text("\n".join(tokens) + "\n")
    tokenizer = tokenizers.from_file(
        "wordpiece", vocabulary, lowercase=True, max_input_chars_per_word=200
    )
    with RowsWriter(directory / "rows", tokenizer) as writer:
        for part in parts:
            writer.append(part)
        options = {"tokenizer": "wordpiece", "lowercase": True, "vocab_size": VOCAB, "input": []}
        source = {"path": "some.tfrecord", "bytes": 1, "records": 1}
        writer.write_metadata({"options": options, "sources": [source]})
    return StaticRows(directory / "rows")


def spec(**changes):
    values = dict(
        max_seq_length=LENGTH, max_predictions_per_seq=SLOTS, batch_size=8, seed=0, stage=0
    )
    return StreamSpec(**values | changes)


def records(stream, first, steps, position=None):
    """Which rows come, batch by batch; their content is compared elsewhere."""
    described = [stream.describe_batch(step) for step in range(first, first + steps)]
    return [[record for _, record in batch["rows"]] for batch in described]


def as_bytes(batches):
    return [{name: values.tobytes() for name, values in batch.items()} for batch in batches]


def test_rows_come_back_as_they_were_written(tmp_path):
    columns = make_columns(20)
    stream = StaticStream(write(tmp_path, columns), spec(batch_size=20))
    batch = next(stream.batches(0, 1))
    order = records(stream, 0, 1)[0]
    assert sorted(order) == list(range(20))
    for name, values in batch.items():
        expected = columns[name][order]
        assert values.dtype == (np.float32 if name == "masked_lm_weights" else np.int32)
        np.testing.assert_array_equal(values, expected, err_msg=name)
    assert "source" not in batch and "record" not in batch


@pytest.mark.parametrize("batch_size", [1, 7, 8, 50])
def test_every_row_comes_once_an_epoch_in_another_order(tmp_path, batch_size):
    stream = StaticStream(write(tmp_path, make_columns(21)), spec(batch_size=batch_size))
    flat = list(itertools.chain(*records(stream, 0, -(-63 // batch_size))))[:63]
    epochs = [flat[i : i + 21] for i in (0, 21, 42)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(21))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_seed_and_stage_change_the_order(tmp_path):
    rows = write(tmp_path, make_columns(50))
    orders = [
        records(StaticStream(rows, spec(**changes)), 0, 4)
        for changes in ({}, {"seed": 1}, {"stage": 1})
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("first", [0, 1, 5, 11])
def test_resuming_is_arithmetic(tmp_path, first):
    rows = write(tmp_path, make_columns(37))
    straight = as_bytes(StaticStream(rows, spec(batch_size=8)).batches(0, 14))
    fresh = StaticStream(rows, spec(batch_size=8, num_threads=1, prefetch_batches=1))
    position = fresh.position(first)
    resumed = as_bytes(fresh.batches(first, 14 - first, position))
    assert resumed == straight[first:]


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_share_each_batch(tmp_path, hosts):
    rows = write(tmp_path, make_columns(37))
    whole = list(StaticStream(rows, spec()).batches(0, 10))
    parts = [
        list(StaticStream(rows, spec(), shards=(p,), num_shards=hosts).batches(0, 10))
        for p in range(hosts)
    ]
    for step, batch in enumerate(whole):
        for name, values in batch.items():
            ours = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(ours, values)


def test_a_host_may_have_shards_that_are_not_neighbours(tmp_path):
    rows = write(tmp_path, make_columns(37))
    ours = StaticStream(rows, spec(), shards=(0, 3), num_shards=4).batches(0, 10)
    for batch, part in zip(StaticStream(rows, spec()).batches(0, 10), ours, strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(part[name], values[[0, 1, 6, 7]])


def test_shapes_are_kept_apart_and_short_ones_padded(tmp_path):
    parts = make_columns(6), make_columns(5, slots=2, first=6), make_columns(4, length=32, first=11)
    rows = write(tmp_path, *parts)
    assert rows.num_rows == 15
    stream = StaticStream(rows, spec(batch_size=11, max_predictions_per_seq=4))
    batch = next(stream.batches(0, 1))
    order = records(stream, 0, 1)[0]
    assert sorted(order) == list(range(11))
    for row, record in enumerate(order):
        part, at = (parts[0], record) if record < 6 else (parts[1], record - 6)
        width = part["masked_lm_ids"].shape[1]
        for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
            np.testing.assert_array_equal(batch[name][row, :width], part[name][at])
            assert not batch[name][row, width:].any()
        np.testing.assert_array_equal(batch["input_ids"][row], part["input_ids"][at])
    long = StaticStream(rows, spec(max_seq_length=32, batch_size=4))
    assert sorted(records(long, 0, 1)[0]) == [11, 12, 13, 14]


def test_what_a_stage_cannot_take(tmp_path):
    rows = write(tmp_path, make_columns(6), make_columns(4, length=32))
    with pytest.raises(UserError, match="24 tokens.*there are records of 16, 32"):
        StaticStream(rows, spec(max_seq_length=24))
    with pytest.raises(UserError, match="have 3 predictions.*max_predictions_per_seq is 2; set"):
        StaticStream(rows, spec(max_predictions_per_seq=2))


def test_tokens_are_counted_unmasked_without_specials(tmp_path):
    columns = make_columns(1, length=8, slots=3)
    columns["input_ids"] = np.array([[2, 6, 4, 7, 3, 9, 3, 0]])
    columns["attention_mask"] = np.array([[1, 1, 1, 1, 1, 1, 1, 0]])
    # Position 2 was masked; the last slot only fills.
    columns["masked_lm_positions"] = np.array([[2, 3, 0]])
    columns["masked_lm_ids"] = np.array([[11, 7, 0]])
    columns["masked_lm_weights"] = np.array([[1.0, 1.0, 0.0]])
    counts = write(tmp_path, columns).token_counts
    assert counts.dtype == np.int64 and len(counts) == VOCAB
    assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == {6: 1, 7: 1, 9: 1, 11: 1}


@pytest.mark.parametrize(
    "position",
    [
        {"epoch": 0, "first_example": 32, "rows": 37},
        {"epoch": 0, "first_example": 8, "rows": 38},
        {"epoch": 1, "first_example": 8, "rows": 37},
        {"epoch": 0, "first_example": 9, "rows": 37},
        {"epoch": 0, "window": 0, "first_example": 8},
        {},
    ],
)
def test_a_position_of_other_data(tmp_path, position):
    stream = StaticStream(write(tmp_path, make_columns(37)), spec())
    with pytest.raises(UserError, match="none of this run's at step 2"):
        stream.batches(2, 3, position)


def test_damaged_files_are_named(tmp_path):
    write(tmp_path, make_columns(5))
    path = tmp_path / "rows" / "rows-00016-0003.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="rows-00016-0003.bin should have"):
        StaticRows(tmp_path / "rows")
    (tmp_path / "rows" / "rows.json").write_text('{"format_version": 1}')
    with pytest.raises(UserError, match="rows.json is damaged"):
        StaticRows(tmp_path / "rows")
    (tmp_path / "rows" / "rows.json").write_text('{"format_version": 2}')
    with pytest.raises(UserError, match="of format version 2, this program reads version 1"):
        StaticRows(tmp_path / "rows")
    (tmp_path / "rows" / "rows.json").unlink()
    with pytest.raises(UserError, match="rows.json is missing"):
        StaticRows(tmp_path / "rows")
