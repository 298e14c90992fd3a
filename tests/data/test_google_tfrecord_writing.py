"""TFRecord files in google-research/bert's format: written from a token store, whole or not."""

import itertools
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_jax import prepare, tokenizers
from bert_jax.config import default_config
from bert_jax.data import google_export
from bert_jax.data.static_rows import StaticRows
from bert_jax.data.static_stream import StaticStream
from bert_jax.data.store import TokenStore
from bert_jax.data.store_directory import empty_directory
from bert_jax.data.stream import StreamSpec, TokenStream
from bert_jax.errors import UserError
from tests.data.google_records import data_of

SPEC = StreamSpec(max_seq_length=48, max_predictions_per_seq=8, batch_size=16, seed=3, stage=0)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("store") / "store"
    data = default_config().data
    data.num_processes, data.heldout_fraction = 1, 0.0
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a, b in itertools.product("kaerst", "aeioun")]
    for i in range(12):
        sentences = [
            " ".join(rng.choice(words, rng.integers(3, 15))).capitalize() + "." for _ in range(40)
        ]
        (folder / f"{i}.txt").write_text("\n".join(sentences))
    data.input, data.format = (f"{folder}/*.txt",), "sentences"
    prepare.prepare(data, 100, directory, show_progress=False)
    return directory


def export(store, output, pipeline_spec, **options):
    tokenizer = tokenizers.load(store / "tokenizer")
    written = google_export.write_tfrecords(
        TokenStore(store / "train"),
        tokenizer,
        pipeline_spec,
        output,
        show_progress=False,
        **options,
    )
    return written, tokenizer


class TestWriting:
    def test_the_round_trip_batch_for_batch(self, store, tmp_path):
        written, tokenizer = export(store, tmp_path / "out", SPEC, dupe_factor=3, num_shards=2)
        data = data_of(tmp_path / "out" / "vocab.txt", tmp_path / "out" / "*.tfrecord")
        prepare.prepare(data, 100, tmp_path / "rows", show_progress=False)
        rows = StaticRows(tmp_path / "rows")
        assert rows.num_rows == written
        static = StaticStream(rows, SPEC)
        # In the order they were written, row by row.
        stream = TokenStream(TokenStore(store / "train"), tokenizer, SPEC)
        epochs = [stream.position(i)["epoch"] for i in range(written // 16)]
        assert epochs[-1] == 2, "three epochs"
        expected = {}
        for step, batch in enumerate(stream.batches(0, written // 16)):
            for row in range(16):
                expected[16 * step + row] = {k: v[row] for k, v in batch.items()}
        for step, batch in enumerate(static.batches(0, written // 16)):
            for row, (path, record) in enumerate(static.describe_batch(step)["rows"]):
                shard = 0 if "00000-of-00002" in path else 1
                number = 2 * (record - 1) + shard
                if number in expected:
                    for name, value in expected.pop(number).items():
                        np.testing.assert_array_equal(batch[name][row], value, err_msg=name)
        assert len(expected) < 16, "the last, incomplete batch of either stream"

    def test_the_originals_reader_reads_it(self, store, tmp_path):
        written, _ = export(store, tmp_path / "out", SPEC, dupe_factor=1)
        # The features that run_pretraining.py reads.
        shapes = {
            "input_ids": ([48], tf.int64),
            "input_mask": ([48], tf.int64),
            "segment_ids": ([48], tf.int64),
            "masked_lm_positions": ([8], tf.int64),
            "masked_lm_ids": ([8], tf.int64),
            "masked_lm_weights": ([8], tf.float32),
            "next_sentence_labels": ([1], tf.int64),
        }
        wanted = {name: tf.io.FixedLenFeature(*shape) for name, shape in shapes.items()}
        paths = sorted(map(str, (tmp_path / "out").glob("*.tfrecord")))
        assert paths == [str(tmp_path / "out" / "examples-00000-of-00001.tfrecord")]
        records = list(tf.data.TFRecordDataset(paths))
        assert len(records) == written
        for record in records[:20]:
            example = tf.io.parse_single_example(record, wanted)
            length = int(example["input_mask"].numpy().sum())
            assert not example["input_ids"].numpy()[length:].any()
            assert set(tf.train.Example.FromString(record.numpy()).features.feature) == set(shapes)

    def test_the_vocabulary_and_the_counts_are_the_stores(self, store, tmp_path):
        _, tokenizer = export(store, tmp_path / "out", SPEC, dupe_factor=1)
        given = (store / "tokenizer" / "vocab.txt").read_bytes()
        assert (tmp_path / "out" / "vocab.txt").read_bytes() == given
        data = data_of(tmp_path / "out" / "vocab.txt", tmp_path / "out" / "*.tfrecord")
        prepare.prepare(data, 100, tmp_path / "rows", show_progress=False)
        rows, tokens = StaticRows(tmp_path / "rows"), TokenStore(store / "train")
        assert rows.token_counts[list(tokenizer.special_ids)].tolist() == [0, 0, 0, 0, 0]
        # A random B is read twice, what truncation takes never: shares, not numbers.
        ours, theirs = (s.token_counts / s.token_counts.sum() for s in (rows, tokens))
        assert np.abs(ours - theirs).max() < 0.01

    def test_what_is_there_is_not_touched(self, store, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("")
        with pytest.raises(UserError, match="out holds mine, which is no part"):
            export(store, tmp_path / "out", SPEC)
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    @pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_interrupted_it_leaves_nothing(self, store, tmp_path, monkeypatch, error, there):
        output = tmp_path / "out"
        if there:
            output.mkdir()

        def interrupted(*_):
            names = [path.name for path in output.iterdir()]
            assert names == ["examples-00000-of-00001.tfrecord.partial"]
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(google_export, "_serialized", interrupted)
            with pytest.raises(error):
                export(store, output, SPEC)
        assert [*tmp_path.rglob("*")] == ([output] if there else [])

    def test_what_a_killed_run_left_is_replaced(self, store, tmp_path):
        left = tmp_path / "out" / "examples-00007-of-00009.tfrecord.partial"
        left.parent.mkdir(parents=True)
        left.write_text("half")
        export(store, tmp_path / "out", SPEC, dupe_factor=1)
        assert [p.name for p in tmp_path.iterdir()] == ["out"]
        names = ["examples-00000-of-00001.tfrecord", "tokenizer.json", "vocab.txt"]
        assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names

    @pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
    @pytest.mark.parametrize("method", ["write", "close"])
    def test_a_full_disk(self, store, tmp_path, monkeypatch, method, there):
        output = tmp_path / "out"
        if there:
            output.mkdir()

        class Full(tf.io.TFRecordWriter):
            calls = 0

            def fail(self, *_):
                Full.calls += 1
                if Full.calls > 1:
                    message = f"{output}/examples; No space left on device"
                    raise tf.errors.ResourceExhaustedError(None, None, message)

        setattr(Full, method, Full.fail)
        monkeypatch.setattr(tf.io, "TFRecordWriter", Full)
        with pytest.raises(UserError, match=f"^{output} .*: No space left on device;"):
            export(store, output, SPEC, dupe_factor=1, num_shards=3)
        assert [*tmp_path.rglob("*")] == ([output] if there else [])

    def test_another_process_writing_is_left_alone(self, store, tmp_path):
        with empty_directory(tmp_path / "out", re.compile("")):
            (tmp_path / "out" / "vocab.txt").write_text("theirs")
            with pytest.raises(UserError, match="another process is writing"):
                export(store, tmp_path / "out", SPEC)
        assert (tmp_path / "out" / "vocab.txt").read_text() == "theirs"

    def test_the_same_bytes_every_time(self, store, tmp_path):
        for name in ("one", "two"):
            export(store, tmp_path / name, SPEC, dupe_factor=1)
        one, two = (
            (tmp_path / name / "examples-00000-of-00001.tfrecord").read_bytes()
            for name in ("one", "two")
        )
        assert one == two
