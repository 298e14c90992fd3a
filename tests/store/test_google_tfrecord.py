"""TFRecord files in google-research/bert's format: reading, order, refusals, writing."""

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.base.lean_tensorflow import tf
from bert_jax.batches import tfrecord_writer
from bert_jax.batches.rows import records
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.store import google_tfrecord
from bert_jax.store.preparation import prepare
from bert_jax.store.record_store import RecordStore
from bert_jax.store.token_store import TokenStore
from bert_jax.tokenizers import SPECIAL_TOKENS
from tests import stores
from tests.store.google_records import VOCAB, data_of, features, serialized, write

# The first records of seed 0 and stage 0, whose order never changes.
PINNED = [17, 9, 16, 1, 1, 11, 13, 9]
LENGTHS = {"max_seq_length": 16, "max_predictions_per_seq": 3}


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    tokens = [*SPECIAL_TOKENS.spellings, *(f"w{i}" for i in range(VOCAB - 5))]
    path.write_text("\n".join(tokens) + "\n")
    return path


def convert(vocab, data_input, output=None, **changes):
    output = output or vocab.parent / "rows"
    data = data_of(vocab, data_input, **changes)
    metadata = prepare(data, VOCAB, output)
    return metadata, RecordStore(output)


def stream(rows, shards=(0,), num_shards=1, **changes):
    values = {**LENGTHS, "batch_size": 8, "seed": 0, "stage": 0, **records.PARTS, **changes}
    return Stream(rows, None, StreamSpec(**values), shards=shards, num_shards=num_shards)


def expected(path, record):
    """Returns the features of a record of the files "a" (from number 0) and "b" (100)."""
    return features(record - 1 + (100 if path.endswith("b") else 0))


@pytest.fixture
def rows(vocab, tmp_path):
    """37 rows of two files, and 4 of another length."""
    write(tmp_path / "b", [features(100 + i) for i in range(17)])
    write(tmp_path / "a", [serialized(features(i), [("one_more", [7])]) for i in range(20)])
    write(tmp_path / "c", [features(i, 32, 5) for i in range(4)])
    write(tmp_path / "empty", [])
    return convert(vocab, ",".join(str(tmp_path / n) for n in ("a", "b", "c", "empty")))[1]


class TestReading:
    @pytest.mark.parametrize("window", [2**18, 10])
    def test_every_record_is_read_unchanged_once_per_epoch(self, rows, monkeypatch, window):
        monkeypatch.setattr(records, "_WINDOW_ROWS", window)
        ours, found = stream(rows), []
        for step, batch in enumerate(ours.batches(0, 14)):
            for row, (path, record) in enumerate(ours.describe_batch(step)["rows"]):
                for feature, name in google_tfrecord.FEATURES.items():
                    values = np.ravel(batch[name][row])
                    np.testing.assert_array_equal(values, expected(path, record)[feature])
                found.append((path[-1], record))
        epochs = [found[:37], found[37:74], found[74:111]]
        for epoch in epochs:
            assert sorted(epoch) == [("a", i + 1) for i in range(20)] + [
                ("b", i + 1) for i in range(17)
            ]
        assert epochs[0] != epochs[1] != epochs[2]
        assert [record for _, record in found[:8]] == PINNED
        for change in ({"seed": 1}, {"stage": 1}):
            other = stream(rows, **change).describe_batch(0)["rows"]
            assert [record for _, record in other] != PINNED

    def test_resumed_and_sharded_batches_are_the_same(self, rows):
        whole = list(stream(rows).batches(0, 14))
        for first in (1, 5, 11):
            resumed = stream(rows)
            for batch in resumed.batches(first, 2, stream(rows).position(first)):
                assert all(np.array_equal(batch[k], whole[first][k]) for k in batch)
                first += 1
        halves = [stream(rows, shards=(i,), num_shards=2).batches(0, 14) for i in range(2)]
        for batch, *parts in zip(whole, *halves, strict=True):
            for name, values in batch.items():
                joined = np.concatenate([part[name] for part in parts])
                assert np.array_equal(joined, values) and values.dtype == joined.dtype

    def test_fewer_predictions_than_the_stage_takes_are_padded(self, rows):
        plain = next(stream(rows).batches(0, 1))
        wide = next(stream(rows, max_predictions_per_seq=5).batches(0, 1))
        for name, values in plain.items():
            assert np.array_equal(
                wide[name][:, : values.shape[-1]] if values.ndim > 1 else values, values
            )
        assert not wide["masked_lm_weights"][:, 3:].any()
        assert np.array_equal(wide["input_ids"], plain["input_ids"])
        with pytest.raises(UserError, match="24 tokens.*the records have 16 or 32"):
            stream(rows, max_seq_length=24)
        with pytest.raises(UserError, match="have 3 predictions.*max_predictions_per_seq is 2"):
            stream(rows, max_predictions_per_seq=2)

    def test_tokens_are_counted_unmasked_without_specials(self, vocab, tmp_path):
        record = {
            "input_ids": [2, 6, 4, 7, 3, 9, 3, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 1, 0],
            "segment_ids": [0] * 8,
            # Position 2 was masked; the last slot is padding.
            "masked_lm_positions": [2, 3, 0],
            "masked_lm_ids": [11, 7, 0],
            "masked_lm_weights": [1.0, 1.0, 0.0],
            "next_sentence_labels": [0],
        }
        counts = convert(vocab, write(tmp_path / "a", [record]))[1].token_counts
        assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == {6: 1, 7: 1, 9: 1, 11: 1}

    def test_interrupted_conversion_is_repeated(self, vocab, tmp_path):
        path = write(tmp_path / "a", [features(i) for i in range(4)])
        with pytest.raises(UserError):
            convert(vocab, f"{path},{write(tmp_path / 'b', [b'broken'])}")
        assert (tmp_path / "rows" / "rows-00000.bin").exists()
        with pytest.raises(UserError, match="metadata.json is missing"):
            RecordStore(tmp_path / "rows")
        rows = convert(vocab, path)[1]
        assert rows.num_rows == 4
        file = tmp_path / "rows" / "rows-00000.bin"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(UserError, match="rows-00000.bin is damaged"):
            list(stream(RecordStore(tmp_path / "rows")).batches(0, 1))
        file.write_bytes(b"cut")
        with pytest.raises(UserError, match="rows-00000.bin should have"):
            RecordStore(tmp_path / "rows")


def broken(**changes):
    values = features() | changes
    return {name: column for name, column in values.items() if column is not None}


@pytest.mark.parametrize(
    "record, words",
    [
        (broken(segment_ids=None), "has no values of segment_ids"),
        (b"\xff\xfe this is something else", "has no values of input_ids.*tf.train.Examples"),
        (broken(input_mask=[1] * 15), "has 15 values of input_mask.* with 16"),
        (features(0, 32), "has 32 values of input_ids.* with 16"),
        (broken(next_sentence_labels=[0, 1]), "has 2 values of next_sentence_labels.* with 1"),
        (broken(input_ids=[2] + [40] * 15), "has 40 in input_ids; .* below 40 .*of data.vocab"),
        (broken(masked_lm_ids=[1, 2, -1]), "has -1 in masked_lm_ids"),
        (broken(masked_lm_positions=[1, 2, 16]), "has 16 in masked_lm_positions; .*below 16"),
        (broken(masked_lm_weights=[1.0, float("nan"), 1.0]), "has nan in masked_lm_weights"),
        (broken(segment_ids=[2] * 16), "has 2 in segment_ids"),
        (broken(input_ids=[7] * 16), r"begins with the id 7, but \[CLS\].* is 2: .*another voc"),
    ],
)
def test_a_bad_record_is_named(vocab, tmp_path, record, words):
    good = [features(i) for i in range(1500)]
    path = write(tmp_path / "a.tfrecord", [*good, record, *good[:3]])
    with pytest.raises(UserError, match=f"a.tfrecord: record 1501 {words}"):
        convert(vocab, path)


def test_bad_files(vocab, tmp_path):
    path = tmp_path / "a.tfrecord"
    content = write(path, [features(i) for i in range(1500)]).read_bytes()
    damaged = bytearray(content)
    damaged[1200 * len(content) // 1500 + 50] ^= 1
    for changed, words in (
        (bytes(damaged), "a.tfrecord is damaged .* after record 1024"),
        (content[:-5], "a.tfrecord is damaged .* after record 1024"),
        (b"just some text, for sure no records\n" * 9, "not a TFRecord file: after record 0"),
        (b"", "have no records"),
    ):
        path.write_bytes(changed)
        with pytest.raises(UserError, match=words):
            convert(vocab, path)
    for record in ({}, b"\xff\xfe this is something else"):
        with pytest.raises(UserError, match="record 1 has no values of input_ids"):
            convert(vocab, write(path, [record]))
    with pytest.raises(UserError, match="masked_lm_weights must be floats"):
        convert(vocab, write(path, [broken(masked_lm_weights=[1] * 3)]))
    with pytest.raises(UserError, match="data.input is 'sotu'.*globs of TFRecord"):
        convert(vocab, "sotu")


SPEC = StreamSpec(max_seq_length=48, max_predictions_per_seq=8, batch_size=16, seed=3, stage=0)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    words = [a + b for a in "kaerst" for b in "aeioun"]
    for i in range(12):
        sentences = (" ".join(rng.choice(words, rng.integers(3, 15))) + "." for _ in range(40))
        (folder / f"{i}.txt").write_text("\n".join(sentences))
    data = stores.options(f"{folder}/*.txt", format="sentences", heldout_fraction=0.0)
    stores.make(data, folder / "store", 100)
    return folder / "store"


def export(store, output, **options):
    tokenizer = tokenizers.load(store / "tokenizer")
    split = TokenStore(store / "train")
    tfrecord_writer.write_tfrecords(split, tokenizer, SPEC, output, **options)
    return Stream(split, tokenizer, SPEC)


class TestWriting:
    def test_exported_records_give_the_same_batches(self, store, tmp_path):
        out = tmp_path / "out"
        original = export(store, out, dupe_factor=3, num_shards=2)
        assert (out / "vocab.txt").read_bytes() == (store / "tokenizer/vocab.txt").read_bytes()
        data = data_of(out / "vocab.txt", out / "*.tfrecord")
        metadata = prepare(data, 100, tmp_path / "rows")
        written = metadata["splits"]["train"]["records"]
        assert original.position(written // 16)["epoch"] in (2, 3), "three epochs"
        rows = [
            {name: values[row] for name, values in batch.items()}
            for batch in original.batches(0, -(-written // 16))
            for row in range(16)
        ]
        records = stream(
            RecordStore(tmp_path / "rows"),
            max_seq_length=48,
            batch_size=64,
            max_predictions_per_seq=8,
        )
        seen = set()
        for step, batch in enumerate(records.batches(0, written // 64)):
            for row, (path, record) in enumerate(records.describe_batch(step)["rows"]):
                number = 2 * (record - 1) + ("00001-of-00002" in path)
                seen.add(number)
                for name, value in rows[number].items():
                    np.testing.assert_array_equal(batch[name][row], value, err_msg=name)
        assert len(seen) == written // 64 * 64

    def test_records_have_the_originals_features(self, store, tmp_path):
        """Reads records with the features and shapes of run_pretraining.py."""
        export(store, tmp_path / "out", dupe_factor=1)
        shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ([48], tf.int64))
        shapes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), ([8], tf.int64))
        shapes |= {"masked_lm_weights": ([8], tf.float32), "next_sentence_labels": ([1], tf.int64)}
        wanted = {name: tf.io.FixedLenFeature(*shape) for name, shape in shapes.items()}
        path = tmp_path / "out" / "examples-00000-of-00001.tfrecord"
        for record in tf.data.TFRecordDataset(str(path)).take(20):
            example = tf.io.parse_single_example(record, wanted)
            length = int(example["input_mask"].numpy().sum())
            assert not example["input_ids"].numpy()[length:].any()
            assert set(tf.train.Example.FromString(record.numpy()).features.feature) == set(shapes)

    def test_output_directory(self, store, tmp_path):
        """Unrelated files are refused; files left by a killed export are replaced."""
        out = tmp_path / "out"
        out.mkdir()
        (out / "mine").write_text("")
        with pytest.raises(UserError, match="out holds mine, which is not part"):
            export(store, out)
        (out / "mine").rename(out / "examples-00007-of-00009.tfrecord.partial")
        export(store, out, dupe_factor=1)
        records = "examples-00000-of-00001.tfrecord"
        names = ["bert_jax_tokenizer.json", records, "vocab.txt"]
        assert sorted(p.name for p in out.iterdir()) == names
        export(store, tmp_path / "again", dupe_factor=1)
        assert (tmp_path / "again" / records).read_bytes() == (out / records).read_bytes()

    def test_a_full_disk(self, store, tmp_path, monkeypatch):
        def fail(*_):
            raise tf.errors.ResourceExhaustedError(None, None, "x; No space left on device")

        monkeypatch.setattr(tf.io.TFRecordWriter, "write", fail)
        with pytest.raises(UserError, match="out cannot be written: .*No space left on device"):
            export(store, tmp_path / "out", dupe_factor=1)
        assert not [*tmp_path.glob("out/*.tfrecord")]
