"""TSV, CSV and JSON lines with named columns."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.tables import read_rows


@pytest.fixture
def write(tmp_path):
    def write(files):
        for name, content in files.items():
            content = content if isinstance(content, bytes) else content.encode()
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return write


def read(folder, name, needed=("a", "b"), policy="refuse", **options):
    bad_rows = BadRecords(policy, "data.bad_rows")
    rows = list(read_rows(Path(folder, name), needed, bad_rows, **options))
    return [(str(row.where).rpartition(":")[2], row.values) for row in rows], dict(bad_rows.dropped)


@pytest.mark.parametrize(
    "name, content, expected",
    [
        # TSV has no quoting, and only "\n" ends a line.
        (
            "x.tsv",
            '\ufeffa\tb\r\n"one\ttwo"\n\n\'\tfour\u2028five\n',
            [("2", {"a": '"one', "b": 'two"'}), ("4", {"a": "'", "b": "four\u2028five"})],
        ),
        (
            "x.csv",
            'a,b\r\n"one, two","say ""hi"""\n"over\ntwo lines",x\nlast,y\n',
            [
                ("2", {"a": "one, two", "b": 'say "hi"'}),
                ("3", {"a": "over\ntwo lines", "b": "x"}),
                ("5", {"a": "last", "b": "y"}),
            ],
        ),
        (
            "x.jsonl",
            '{"a": "one", "b": 2, "more": [1]}\n\n{"b": true, "a": "x"}\n',
            [("1", {"a": "one", "b": "2", "more": [1]}), ("3", {"a": "x", "b": "true"})],
        ),
        # A column that is not needed may occur twice.
        ("x.csv", "a,b,c,c\n1,2,3,4\n", [("2", {"a": "1", "b": "2", "c": "4"})]),
    ],
)
def test_rows(write, name, content, expected):
    assert read(write({name: content}), name)[0] == expected


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_decides_the_encoding(write, encoding):
    folder = write({"x.csv": "a,b\nä,2\n".encode(encoding)})
    assert read(folder, "x.csv")[0] == [("2", {"a": "ä", "b": "2"})]


def test_columns_of_a_file_without_header(write):
    folder = write({"x.tsv": "one\ttwo\n"})
    assert read(folder, "x.tsv", header=("a", "b"))[0] == [("1", {"a": "one", "b": "two"})]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.tsv", "a\tc\n1\t2\n", "x.tsv:1: no column is named 'b'; the columns are: a, c"),
        ("x.tsv", "", "x.tsv:1: no column is named 'a'"),
        # With old line ends, the file is one long line, which is shown only in part.
        ("x.tsv", "a\tb\r" + "1\t2\r" * 10_000, "x.tsv:1: no column is named 'b'; .{,400}$"),
        ("x.csv", "a,b,b\n1,2,3\n", "x.csv:1: 2 columns are named 'b'"),
        ("x.csv", 'a,b\nx,"y', "x.csv:2: not valid CSV"),
        ("x.txt", "a\tb\n", "must be named .tsv, .csv, .jsonl, .json, .parquet, .arrow"),
    ],
)
def test_files_that_are_not_tables(write, name, content, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        read(write({name: content}), name, policy="skip")


@pytest.mark.parametrize(
    "name, bad, message",
    [
        ("x.tsv", b"1\t2\t3", "x.tsv:3: 3 columns instead of 2"),
        ("x.tsv", b"1\t\xff", "x.tsv:3: not valid UTF-8"),
        ("x.jsonl", b'{"a": 1', "x.jsonl:2: not a JSON object"),
        ("x.jsonl", b'{"a": 1}', "x.jsonl:2: field 'b' is missing; its fields: a"),
        ("x.jsonl", b'{"a": 1, "b": []}', "x.jsonl:2: 'b' is a list or an object, not a text"),
        ("x.jsonl", b'[1, "b"]', "x.jsonl:2: not a JSON object"),
        ("x.jsonl", b'{"a": 1, "b": "\\ud800"}', "x.jsonl:2: not valid UTF-8"),
    ],
)
def test_bad_rows(write, name, bad, message):
    good = {"x.tsv": b"a\tb\n1\t2\n", "x.csv": b"a,b\n1,2\n", "x.jsonl": b'{"a": "1", "b": "2"}\n'}
    folder = write({name: good[name] + bad + b"\n"})
    with pytest.raises(UserError, match=message + r".*data.bad_rows=skip"):
        read(folder, name)
    rows, dropped = read(folder, name, policy="skip")
    assert len(rows) == 1 and sum(dropped.values()) == 1


def test_long_values(write):
    long = "x" * 300_000
    folder = write({"x.csv": f"a,b\n{long},y\n", "x.jsonl": json.dumps({"a": long, "b": "y"})})
    for name in ("x.csv", "x.jsonl"):
        assert read(folder, name)[0][0][1]["a"] == long


def write_classes(path, rows, features):
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(pa.table(rows, metadata=metadata), path)


def test_what_datasets_stores_beside_a_table_may_be_of_any_version(tmp_path):
    text, label = ["one", "two", "three"], {"names": ["no", "yes"], "_type": "ClassLabel"}
    path = tmp_path / "x.parquet"
    for labels, features, expected in (
        ([0, 1, -1], {"b": label}, ["no", "yes", ""]),
        # Another program has replaced the numbers, or there is no such class.
        (["no", "yes", "no"], {"b": label}, ["no", "yes", "no"]),
        ([0, 1, 2], {"b": label}, ["no", "yes", "2"]),
        ([0, 1, 2], {"b": [{"names": "x"}], "dropped": label}, ["0", "1", "2"]),
        ([0, 1, 2], None, ["0", "1", "2"]),
    ):
        write_classes(path, {"a": text, "b": labels}, features)
        rows, _ = read(tmp_path, "x.parquet")
        assert [values["b"] for _, values in rows] == expected
    write_classes(path, {"a": text, "b": [0, 1, 0]}, {"b": label})
    rows, _ = read(tmp_path, "x.parquet", class_names=False)
    assert [values["b"] for _, values in rows] == ["0", "1", "0"]


def test_an_object_that_is_not_utf8_is_skipped(tmp_path):
    array = pa.array([b"good", b"\xff\xfe"])
    texts = pa.Array.from_buffers(pa.string(), 2, array.buffers())
    parquet.write_table(pa.table({"a": texts}), tmp_path / "x.parquet")
    bad_rows = BadRecords("skip", "data.bad_rows")
    rows = list(read_rows(tmp_path / "x.parquet", (), bad_rows))
    assert [row.values for row in rows] == [{"a": "good"}]
    assert bad_rows.dropped.total() == 1


def test_a_pipe_is_no_table(tmp_path):
    """Tables are read more than once."""
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(UserError, match="x.csv is not a regular file"):
        read(tmp_path, "x.csv")


def test_what_is_missing_is_an_empty_text_in_all_formats(tmp_path):
    """Pandas writes null as NaN, and both as an empty cell of CSV."""
    rows = [{"a": "x", "b": value, "c": 1.5} for value in (None, "")]
    rows += [{"a": "x", "b": "y", "c": value} for value in (None, float("nan"))]
    expected = [("", "1.5"), ("", "1.5"), ("y", ""), ("y", "")]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "x.jsonl").write_text(lines)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "x.json").write_text(json.dumps(rows))
    (tmp_path / "x.csv").write_text("a,b,c\nx,,1.5\nx,,1.5\nx,y,\nx,y,\n")
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "x.parquet")
    with ipc.new_stream(tmp_path / "x.arrow", table.schema) as stream:
        stream.write_table(table)
    for name in ("x.jsonl", "x.jsonl.gz", "x.json", "x.csv", "x.parquet", "x.arrow"):
        for options in ({"needed": ("a", "b", "c")}, {"needed": ()}, {"optional": ("b", "c")}):
            found, _ = read(tmp_path, name, **{"needed": ("a",), **options})
            assert [(row["b"], row["c"]) for _, row in found] == expected, name


def test_lists_and_objects_are_in_the_rows_of_all_columns(tmp_path):
    row = {"a": "x", "words": ["y", None], "of": {"k": [1, 2]}, "none": None, "number": 2}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "x.parquet")
    expected = row | {"none": "", "number": "2"}
    for name in ("x.jsonl", "x.parquet"):
        assert read(tmp_path, name, needed=())[0] == [("1", expected)]
        rows = read(tmp_path, name, needed=("a",), optional=("words", "absent"))[0]
        assert rows[0][1]["words"] == ["y", None] and "absent" not in rows[0][1]
        with pytest.raises(UserError, match=f"{name}:1: 'words' is a list or an object, not a"):
            read(tmp_path, name, needed=("a", "words"))
        assert read(tmp_path, name, needed=("a", "words"), lists=("words",))[0]


@pytest.mark.parametrize(
    "content, line",
    [('["a", "b"]\n["c", "d"]\n', 1), ("\n[1]\n[2]", 2), ('{"a": "x", "b": "y"}\n["c"]\n', 2)],
)
def test_a_line_that_is_an_array_is_named(write, content, line):
    with pytest.raises(UserError, match=f"x.jsonl:{line}: not a JSON object"):
        read(write({"x.jsonl": content}), "x.jsonl")


def test_a_long_text_that_a_few_bytes_of_parquet_repeat(write):
    """Many rows would be converted at once, each with a copy of its own."""
    folder, text = write({}), "x" * 2**22
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array([text]))
    path = folder / "x.parquet"
    parquet.write_table(pa.table({"a": column}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2**13
    before, most = pa.total_allocated_bytes(), 0
    for row in read_rows(path, ["a"], BadRecords("refuse", "data.bad_rows")):
        assert row.values["a"] == text
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 16 * len(text)
