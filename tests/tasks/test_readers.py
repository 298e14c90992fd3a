"""TSV, CSV and JSONL with named columns."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.readers import read_rows
from bert_jax.tasks.sentence_rows import BadRows


def read(path, needed=("a", "b"), skip=False, **options):
    bad_rows = BadRows(skip)
    rows = list(read_rows(path, needed, bad_rows, **options))
    return [(row.where.rpartition(":")[2], row.values) for row in rows], dict(bad_rows.dropped)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_tsv_has_no_quoting(tmp_path):
    path = write(tmp_path, "x.tsv", '\ufeffa\tb\r\n"one\ttwo"\n\n\'\tfour\u2028five\n')
    rows, _ = read(path)
    assert rows == [
        ("2", {"a": '"one', "b": 'two"'}),
        ("4", {"a": "'", "b": "four\u2028five"}),
    ]


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_blank_lines_of_one_column_are_values_but_at_the_end(tmp_path, name):
    path = write(tmp_path, name, "a\none\n\n\ntwo\n\n\r\n")
    rows, _ = read(path, needed=("a",))
    assert rows == [("2", {"a": "one"}), ("3", {"a": ""}), ("4", {"a": ""}), ("5", {"a": "two"})]


def test_csv_is_what_spreadsheets_write(tmp_path):
    path = write(tmp_path, "x.csv", 'a,b\r\n"one, two","say ""hi"""\n"over\ntwo lines",x\nlast,y\n')
    rows, _ = read(path)
    assert rows == [
        ("2", {"a": "one, two", "b": 'say "hi"'}),
        ("3", {"a": "over\ntwo lines", "b": "x"}),
        ("5", {"a": "last", "b": "y"}),
    ]


def test_jsonl_makes_texts_of_numbers(tmp_path):
    path = write(
        tmp_path, "x.jsonl", '{"a": "one", "b": 2, "more": [1]}\n\n{"b": true, "a": "x"}\n'
    )
    rows, _ = read(path)
    assert rows == [("1", {"a": "one", "b": "2"}), ("3", {"a": "x", "b": "true"})]


def test_a_file_without_a_header_is_told_its_columns(tmp_path):
    path = write(tmp_path, "x.tsv", "one\ttwo\n")
    assert read(path, header=("a", "b"))[0] == [("1", {"a": "one", "b": "two"})]


@pytest.mark.parametrize(
    "name,content,said",
    [
        ("x.tsv", "a\tc\n1\t2\n", r"x.tsv:1: no column 'b'; there is: a, c"),
        ("x.tsv", "", r"x.tsv:1: no column 'a'; there is: nothing"),
        ("x.csv", 'a,b\nx,"y', r"x.csv:2: not valid CSV"),
        ("x.txt", "a\tb\n", r"must be named .tsv, .csv or .jsonl"),
    ],
)
def test_a_file_that_is_no_table(tmp_path, name, content, said):
    with pytest.raises(UserError, match=said):
        read(write(tmp_path, name, content), skip=True)


@pytest.mark.parametrize(
    "name,content,said",
    [
        ("x.tsv", b"a\tb\n1\t2\n1\t2\t3\n", r"x.tsv:3: 3 columns instead of 2"),
        ("x.tsv", b"a\tb\n1\t2\n1\t\xff\n", r"x.tsv:3: not valid UTF-8"),
        ("x.csv", b"a,b\n1,2\nx\n", r"x.csv:3: 1 columns instead of 2"),
        ("x.csv", b'a,b\n"1\n",2\nx,\xc3\n', r"x.csv:4: not valid UTF-8"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1\n', r"x.jsonl:2: not a JSON object"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n[1]\n', r"x.jsonl:2: not a JSON object"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1}\n', r"x.jsonl:2: no field 'b'; there is: a"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1, "b": null}\n', r":2: field 'b' is null"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1, "b": NaN}\n', r":2: field 'b' is NaN"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": -Infinity, "b": 2}\n', r"'a' is -Infinity"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1, "b": []}\n', r":2: field 'b' is not a text"),
        ("x.jsonl", b'{"a": "1", "b": "2"}\n{"a": 1, "b": "\\ud800"}\n', r":2: not valid UTF-8"),
    ],
)
def test_bad_rows(tmp_path, name, content, said):
    path = write(tmp_path, name, content)
    with pytest.raises(UserError, match=said + r".*bad_rows=skip"):
        read(path)
    rows, dropped = read(path, skip=True)
    assert len(rows) == 1 and sum(dropped.values()) == 1
    with pytest.raises(UserError, match=said):
        read(path, skip=True, must_stay=True)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read .*x.tsv"):
        read(tmp_path / "x.tsv")


def test_a_long_value_is_read(tmp_path):
    path = write(tmp_path, "x.csv", "a,b\n" + "x" * 300_000 + ",y\n")
    assert len(read(path)[0][0][1]["a"]) == 300_000
    path = write(tmp_path, "x.jsonl", json.dumps({"a": "x" * 300_000, "b": "y"}))
    assert len(read(path)[0][0][1]["a"]) == 300_000


def test_a_column_that_is_there_twice(tmp_path):
    path = write(tmp_path, "x.csv", "a,b,c,c\n1,2,3,4\n")
    assert read(path)[0] == [("2", {"a": "1", "b": "2", "c": "4"})]
    with pytest.raises(UserError, match="x.csv:1: there are 2 columns 'c'"):
        read(path, needed=("a", "c"))


def test_a_first_line_that_is_no_header_is_not_told_whole(tmp_path):
    # Lines that end as they did on a Mac of 1999 are one line.
    path = write(tmp_path, "x.tsv", "a\tb\r" + "1\t2\r" * 10_000)
    with pytest.raises(UserError, match="x.tsv:1: no column 'b'; there is: a, b") as error:
        read(path)
    assert len(str(error.value)) < 500
