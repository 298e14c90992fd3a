"""TFRecord files in google-research/bert's format: which are read, and which are refused."""

import json

import numpy as np
import pytest

from bert_jax import prepare
from bert_jax.data import tfrecord_reader
from bert_jax.data.static_rows import StaticRows
from bert_jax.data.static_stream import StaticStream
from bert_jax.data.stream import StreamSpec
from bert_jax.errors import UserError
from bert_jax.tokenizers import SPECIAL_TOKENS
from tests.data.google_records import VOCAB, data_of, features, serialized, write


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    tokens = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(VOCAB - 5))]
    path.write_text("\n".join(tokens) + "\n")
    return path


def convert(vocab, data_input, output=None, **changes):
    output = output or vocab.parent / "rows"
    data = data_of(vocab, data_input, **changes)
    metadata = prepare.prepare(data, VOCAB, output, show_progress=False)
    return metadata, StaticRows(output)


def spec(**changes):
    values = dict(max_seq_length=16, max_predictions_per_seq=3, batch_size=4, seed=0, stage=0)
    return StreamSpec(**values | changes)


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
            for feature, (name, _) in tfrecord_reader.FEATURES.items():
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
