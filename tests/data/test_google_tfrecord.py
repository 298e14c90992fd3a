"""TFRecord files in google-research/bert's format: read, refused and written."""

import errno
import itertools
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_jax import prepare, tokenizers
from bert_jax.config import default_config
from bert_jax.data import google_tfrecord
from bert_jax.data.pipeline import PipelineSpec, PretrainingStream
from bert_jax.data.static_rows import StaticRows
from bert_jax.data.static_stream import StaticStream
from bert_jax.data.store import TokenStore
from bert_jax.data.store_directory import empty_directory
from bert_jax.errors import UserError
from bert_jax.tokenizers import SPECIAL_TOKENS

VOCAB = 40


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    tokens = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(VOCAB - 5))]
    path.write_text("\n".join(tokens) + "\n")
    return path


def features(number=0, length=16, slots=3):
    """A record's values; `number` tells records apart."""
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


def convert(vocab, data_input, output=None, **changes):
    output = output or vocab.parent / "rows"
    data = data_of(vocab, data_input, **changes)
    metadata = prepare.prepare(data, VOCAB, output, show_progress=False)
    return metadata, StaticRows(output)


def spec(**changes):
    values = dict(max_seq_length=16, max_predictions_per_seq=3, batch_size=4, seed=0, stage=0)
    return PipelineSpec(**values | changes)


class TestReading:
    def test_records_become_rows(self, vocab, tmp_path):
        write(tmp_path / "b.tfrecord", [features(i) for i in range(3)])
        extra = [("one_more", [7])]
        write(tmp_path / "a.tfrecord", [serialized(features(i), extra) for i in range(3, 5)])
        metadata, rows = convert(vocab, tmp_path / "*.tfrecord")
        assert metadata["rows"] == [{"max_seq_length": 16, "max_predictions_per_seq": 3, "rows": 5}]
        assert [source["records"] for source in metadata["sources"]] == [2, 3]
        stream = StaticStream(rows, spec(batch_size=5))
        batch = next(stream.batches(0, 1))
        places = stream.describe_batch(0)["rows"]
        assert sorted(places) == [
            *([str(tmp_path / "a.tfrecord"), n] for n in (1, 2)),
            *([str(tmp_path / "b.tfrecord"), n] for n in (1, 2, 3)),
        ]
        for row, (path, record) in enumerate(places):
            expected = features(record - 1 + (3 if path.endswith("a.tfrecord") else 0))
            for feature, (name, _) in google_tfrecord.FEATURES.items():
                np.testing.assert_array_equal(np.ravel(batch[name][row]), expected[feature])

    def test_lengths_may_be_mixed_in_a_file(self, vocab, tmp_path):
        shapes = [(16, 3), (32, 3), (16, 2)]
        records = [features(i, *shapes[i % 3]) for i in range(3000)]
        metadata, rows = convert(vocab, write(tmp_path / "a", records))
        assert [tuple(entry.values()) for entry in metadata["rows"]] == [
            (16, 2, 1000),
            (16, 3, 1000),
            (32, 3, 1000),
        ]
        stream = StaticStream(rows, spec(batch_size=1000, max_seq_length=32))
        found = sorted(record for _, record in stream.describe_batch(0)["rows"])
        assert found == list(range(2, 3001, 3))

    def test_a_second_start_reads_nothing(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features(i) for i in range(4)])
        first, _ = convert(vocab, path)
        written = (tmp_path / "rows" / "rows-00016-0003.bin").stat().st_mtime_ns
        assert convert(vocab, path)[0] == first
        path.unlink()
        vocab.unlink()
        assert convert(vocab, path)[0] == first, "the files are needed no more"
        assert (tmp_path / "rows" / "rows-00016-0003.bin").stat().st_mtime_ns == written

    def test_other_files_are_refused(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features(i) for i in range(4)])
        convert(vocab, tmp_path / "*.tfrecord")
        with pytest.raises(UserError, match="made with data.lowercase=True, not False"):
            convert(vocab, tmp_path / "*.tfrecord", lowercase=False)
        write(tmp_path / "b.tfrecord", [features()])
        with pytest.raises(UserError, match=r"of other files .*b\.tfrecord is new"):
            convert(vocab, tmp_path / "*.tfrecord")
        (tmp_path / "b.tfrecord").unlink()
        write(path, [features()])
        with pytest.raises(UserError, match=r"a\.tfrecord had \d+ bytes, now"):
            convert(vocab, tmp_path / "*.tfrecord")
        path.unlink()
        with pytest.raises(UserError, match="data.input was"):
            convert(vocab, tmp_path / "other")
        vocab.write_text(vocab.read_text().replace("w9\n", "v9\n"))
        with pytest.raises(UserError, match="made with data.vocab="):
            convert(vocab, tmp_path / "*.tfrecord")

    def test_an_interrupted_conversion_is_done_again(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features(i) for i in range(4)])
        write(tmp_path / "b.tfrecord", [features(), b"broken"])
        with pytest.raises(UserError):
            convert(vocab, f"{path},{tmp_path / 'b.tfrecord'}")
        assert (tmp_path / "rows" / "rows-00016-0003.bin").exists()
        with pytest.raises(UserError, match="rows.json is missing"):
            StaticRows(tmp_path / "rows")
        assert convert(vocab, path)[1].num_rows == 4

    def test_a_directory_of_something_else_is_left_alone(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features()])
        (tmp_path / "rows").mkdir()
        (tmp_path / "rows" / "metadata.json").write_text("a token store's")
        with pytest.raises(UserError, match="metadata.json, which is no part"):
            convert(vocab, path)


def broken(**changes):
    values = features() | changes
    return {name: column for name, column in values.items() if column is not None}


class TestRefusals:
    @pytest.mark.parametrize(
        "record, words",
        [
            (broken(segment_ids=None), "has no feature segment_ids.*it has: input_ids"),
            ({}, "has no feature input_ids.*it has: none"),
            (b"\xff\xfe this is something else", "is not a tf.train.Example"),
            (broken(input_mask=[1] * 15), "has 15 input_mask but 16 input_ids"),
            (broken(masked_lm_weights=[1.0] * 4), "has 4 masked_lm_weights but 3 masked_lm_ids"),
            (broken(next_sentence_labels=[0, 1]), "has 2 next_sentence_labels; it must have 1"),
            (broken(input_ids=[], input_mask=[], segment_ids=[]), "has 0 input_ids"),
            (broken(input_ids=[1.0] * 16), ".*input_ids of kind float_list; it must be int64_list"),
            (broken(masked_lm_weights=[1] * 3), ".*of kind int64_list; it must be float_list"),
            (broken(input_ids=[2] + [40] * 15), "has 40 in input_ids; the entries.* are 0 to 39"),
            (broken(input_ids=[2] + [-1] * 15), "has -1 in input_ids"),
            (broken(masked_lm_ids=[1, 2, 99]), "has 99 in masked_lm_ids; the entries of data.voc"),
            (broken(masked_lm_positions=[1, 2, 16]), "has 16 in masked_lm_positions; .*within"),
            (broken(masked_lm_weights=[1.0, float("nan"), 1.0]), "has nan in masked_lm_weights"),
            (broken(masked_lm_weights=[1.0, float("inf"), 1.0]), "has inf in masked_lm_weights"),
            (broken(segment_ids=[2] * 16), "has 2 in segment_ids; it must be 0 or 1"),
            (broken(input_mask=[7] * 16), "has 7 in input_mask; it must be 0 or 1"),
            (broken(next_sentence_labels=[-1]), "has -1 in next_sentence_labels"),
            (
                broken(input_ids=[7] * 16),
                r"begins with the id 7, but \[CLS\].* is 2: .*another voc",
            ),
        ],
    )
    def test_a_bad_record_is_named(self, vocab, tmp_path, record, words):
        good = [features(i) for i in range(1500)]
        path = write(tmp_path / "a.tfrecord", [*good, record, *good[:3]])
        with pytest.raises(UserError, match=f"a.tfrecord: record 1501 {words}"):
            convert(vocab, path)

    def test_a_damaged_file(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features(i) for i in range(1500)])
        content = path.read_bytes()
        size = len(content) // 1500
        damaged = bytearray(content)
        damaged[1200 * size + size // 2] ^= 1
        cases = [
            (bytes(damaged), "record 1201 is damaged"),
            (content[:-5], "record 1500 is cut off"),
            # Less than the head of a record is left, which TensorFlow takes for the end.
            (content[: 1100 * size + 3], "record 1101 is cut off"),
            (b"just some text, for sure no records\n" * 9, "record 1 is damaged: is this a TFRec"),
            (b"abc", "record 1 is cut off"),
        ]
        for number, (changed, words) in enumerate(cases):
            path.write_bytes(changed)
            with pytest.raises(UserError, match=words):
                convert(vocab, path, tmp_path / f"rows{number}")

    def test_no_records(self, vocab, tmp_path):
        with pytest.raises(UserError, match="have no record in them"):
            convert(vocab, write(tmp_path / "a.tfrecord", []))

    @pytest.mark.parametrize("data_input", ["sotu", "tfds:wikipedia"])
    def test_what_is_no_file(self, vocab, data_input):
        with pytest.raises(UserError, match=f"data.input is '{data_input}'.*globs of TFRecord"):
            convert(vocab, data_input)

    def test_another_size_of_vocabulary(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features()])
        with pytest.raises(UserError, match="model.vocab_size is 41, but .* has 40 entries"):
            prepare.prepare(data_of(vocab, path), 41, tmp_path / "rows", show_progress=False)

    @pytest.mark.parametrize(
        "changes",
        [
            {"whole_word_masking": True},
            {"masked_lm_prob": 0.2},
            {"heldout_fraction": 0.1},
            {"bad_documents": "skip"},
        ],
        ids=str,
    )
    def test_keys_without_effect(self, vocab, tmp_path, changes):
        path = write(tmp_path / "a.tfrecord", [features()])
        (key,) = changes
        with pytest.raises(UserError, match=f"data.{key} is .*no effect on google_tfrecord"):
            convert(vocab, path, **changes)
        convert(vocab, path, heldout_fraction=0.0)

    def test_without_a_vocabulary(self, vocab, tmp_path):
        path = write(tmp_path / "a.tfrecord", [features()])
        with pytest.raises(UserError, match="config.data.vocab is empty"):
            prepare.prepare(data_of("", path), VOCAB, tmp_path / "rows", show_progress=False)


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
    written = google_tfrecord.write_tfrecords(
        TokenStore(store / "train"),
        tokenizer,
        pipeline_spec,
        output,
        show_progress=False,
        **options,
    )
    return written, tokenizer


SPEC = PipelineSpec(max_seq_length=48, max_predictions_per_seq=8, batch_size=16, seed=3, stage=0)


class TestWriting:
    def test_the_round_trip_batch_for_batch(self, store, tmp_path):
        written, tokenizer = export(store, tmp_path / "out", SPEC, dupe_factor=3, num_shards=2)
        data = data_of(tmp_path / "out" / "vocab.txt", tmp_path / "out" / "*.tfrecord")
        prepare.prepare(data, 100, tmp_path / "rows", show_progress=False)
        rows = StaticRows(tmp_path / "rows")
        assert rows.num_rows == written
        static = StaticStream(rows, SPEC)
        # In the order they were written, row by row.
        stream = PretrainingStream(TokenStore(store / "train"), tokenizer, SPEC)
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
        # The features that run_pretraining.py asks for.
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
        with pytest.raises(UserError, match="is there and not empty"):
            export(store, tmp_path / "out", SPEC)
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    @pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_interrupted_it_leaves_nothing(self, store, tmp_path, monkeypatch, error, there):
        output = tmp_path / "out"
        if there:
            output.mkdir()

        def interrupted(*_):
            within = output / "unfinished" if there else tmp_path / "out.unfinished"
            assert (within / "vocab.txt").exists()
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(google_tfrecord, "_serialized", interrupted)
            with pytest.raises(error):
                export(store, output, SPEC)
        assert [*tmp_path.rglob("*")] == ([output] if there else [])

    @pytest.mark.parametrize("unfinished", ["out.unfinished", "out/unfinished"])
    def test_what_a_killed_run_left_is_replaced(self, store, tmp_path, unfinished):
        left = tmp_path / unfinished / "examples-00007-of-00009.tfrecord"
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

    def test_a_full_disk_before_the_first_record(self, store, tmp_path, monkeypatch):
        def save(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(tokenizers.Tokenizer, "save", save)
        with pytest.raises(UserError, match=r"out .*: No space left on device;"):
            export(store, tmp_path / "out", SPEC)
        assert not [*tmp_path.iterdir()]

    def test_a_directory_that_cannot_be_replaced(self, store, tmp_path, monkeypatch):
        """A mount point, and a link to one."""
        target, link = tmp_path / "target", tmp_path / "link"
        target.mkdir()
        link.symlink_to(target)
        replace = os.replace
        seen = []

        def busy(source, destination):
            if destination in (target, link):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            seen.append(sorted(p.name for p in target.iterdir()))
            replace(source, destination)

        monkeypatch.setattr(os, "replace", busy)
        inode = target.stat().st_ino
        export(store, link, SPEC, dupe_factor=1, num_shards=2)
        shards = [f"examples-0000{i}-of-00002.tfrecord" for i in range(2)]
        assert sorted(p.name for p in target.iterdir()) == [*shards, "tokenizer.json", "vocab.txt"]
        assert link.is_symlink() and target.stat().st_ino == inode
        assert seen[0] == ["unfinished"] and "vocab.txt" not in seen[-1]

    def test_all_files_are_moved_or_none(self, store, tmp_path, monkeypatch):
        replace = os.replace
        moved = []

        def third_fails(source, destination):
            if len(moved) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            moved.append(destination)
            replace(source, destination)

        (tmp_path / "out").mkdir()
        monkeypatch.setattr(os, "replace", third_fails)
        with pytest.raises(UserError, match="out cannot be written: Input/output error"):
            export(store, tmp_path / "out", SPEC, dupe_factor=1, num_shards=2)
        assert len(moved) == 2 and not [*(tmp_path / "out").iterdir()]

    def test_another_process_writing_is_left_alone(self, store, tmp_path):
        (tmp_path / "out").mkdir()
        unfinished = tmp_path / "out" / "unfinished"
        with empty_directory(unfinished, re.compile("")):
            (unfinished / "vocab.txt").write_text("theirs")
            with pytest.raises(UserError, match="another process is writing"):
                export(store, tmp_path / "out", SPEC)
        assert (unfinished / "vocab.txt").read_text() == "theirs"

    def test_the_same_bytes_every_time(self, store, tmp_path):
        for name in ("one", "two"):
            export(store, tmp_path / name, SPEC, dupe_factor=1)
        one, two = (
            (tmp_path / name / "examples-00000-of-00001.tfrecord").read_bytes()
            for name in ("one", "two")
        )
        assert one == two


def test_metadata_is_json_that_people_can_read(vocab, tmp_path):
    convert(vocab, write(tmp_path / "a.tfrecord", [features()]))
    stored = json.loads((tmp_path / "rows" / "rows.json").read_text())
    assert stored["options"]["vocab_path"] == str(vocab)
    assert stored["sources"] == [
        {
            "path": str(tmp_path / "a.tfrecord"),
            "bytes": (tmp_path / "a.tfrecord").stat().st_size,
            "records": 1,
        }
    ]
