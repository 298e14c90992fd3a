"""Rows of tables as documents and as sentences; Parquet in parts; what `datasets` has saved."""

import json
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from bert_jax.base.errors import UserError
from bert_jax.text import readers, row_documents
from bert_jax.text.corpus import Corpus

BOOKS = ["b1", "b1", "b2", "b2", "b2", "b1"]
ROWS = ["One.", " Two\nlines. ", "", "Three.", "Four.", "Five."]


def write(path, texts=ROWS, books=BOOKS):
    """Writes a table with the columns `book` and `text`."""
    if path.suffix == ".jsonl":
        rows = [{"book": book, "text": text} for book, text in zip(books, texts, strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        rows = [f'{book},"{text}"' for book, text in zip(books, texts, strict=True)]
        path.write_text("\n".join(["book,text", *rows]))
    else:
        table = pa.table({"book": books, "text": texts})
        if path.suffix == ".parquet":
            parquet.write_table(table, path, row_group_size=2)
        else:
            with ipc.new_stream(path, table.schema) as file:
                file.write_table(table, max_chunksize=2)
    return str(path)


FORMATS = pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow"])


@FORMATS
def test_consecutive_sentences_of_a_document_are_joined(tmp_path, suffix):
    path = write(tmp_path / f"a.{suffix}")
    corpus = Corpus(path, table_rows="sentences", document_field="book")
    documents = list(corpus.documents())
    assert [(d.id, d.text) for d in documents] == [
        ("b1", "One.\nTwo lines."),
        ("b2", "Three.\nFour."),
        ("b1", "Five."),
    ]
    assert all(document.is_split for document in documents)
    assert len(corpus.parts(10)) == 1


@FORMATS
def test_without_a_field_a_number_of_sentences_is_a_document(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(row_documents, "ROWS_PER_DOCUMENT", 4)
    corpus = Corpus(write(tmp_path / f"a.{suffix}"), table_rows="sentences")
    assert [d.text for d in corpus.documents()] == ["One.\nTwo lines.\nThree.", "Four.\nFive."]


@FORMATS
def test_a_row_is_a_document_and_has_a_name(tmp_path, suffix):
    path = write(tmp_path / f"a.{suffix}", ["One.", "Two."], [7, 8])
    documents = list(Corpus(path, document_field="book").documents())
    assert [(d.id, d.text, d.is_split) for d in documents] == [
        ("7", "One.", False),
        ("8", "Two.", False),
    ]


@FORMATS
def test_a_missing_column_is_named(tmp_path, suffix):
    path = write(tmp_path / f"a.{suffix}")
    with pytest.raises(UserError, match=rf"a.{suffix}.*'id'.*book, text.*data.document_field"):
        list(Corpus(path, document_field="id").documents())
    other = tmp_path / f"b.{suffix}"
    other.write_bytes(b'{"title": "x"}' if suffix == "jsonl" else b"title\nx")
    if suffix == "parquet":
        parquet.write_table(pa.table({"title": ["x"]}), other)
    if suffix == "arrow":
        with ipc.new_stream(other, pa.schema([("title", pa.string())])):
            pass
    with pytest.raises(UserError, match=rf"b.{suffix}.*'text'.*: title.*set data.text_field"):
        list(Corpus(f"{tmp_path}/*.{suffix}", table_rows="sentences").documents())


def test_an_arrow_file_that_goes_on_after_its_table_is_refused(tmp_path):
    path = tmp_path / "a.arrow"
    write(path, ["One."] * 6)
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(UserError, match="a.arrow .*goes on after the end of its table"):
        list(Corpus(str(path)).documents())


def test_a_document_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 20)
    path = write(tmp_path / "a.parquet", ["A short sentence."] * 6)
    with pytest.raises(UserError, match=r"a.parquet:1: more than [0-9]+ characters: split it"):
        list(Corpus(path, table_rows="sentences", document_field="book").documents())


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    group=st.integers(1, 4),
    part_bytes=st.integers(50, 2000),
)
def test_row_groups_of_parquet_are_pieces(lengths, group, part_bytes, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    texts = [f"{number} " * length for number, length in enumerate(lengths)]
    table = pa.table({"id": range(len(texts)), "text": texts})
    parquet.write_table(table, path, row_group_size=group, compression="none")
    corpus = Corpus(str(path))
    found = [d for part in corpus.parts(part_bytes) for d in corpus.documents(part)]
    assert found == list(corpus.documents())
    assert [d.line for d in found] == list(range(1, len(texts) + 1))


@pytest.mark.parametrize("end", [3000, 2**30, -5])
def test_an_arrow_file_with_wrong_offsets_is_refused(tmp_path, end):
    """Arrow would read the memory beside the text."""
    path = tmp_path / "a.arrow"
    content = write(path, ["abcdefgh", "xyz"], ["b", "b"]) and path.read_bytes()
    at = content.rindex(struct.pack("<iii", 0, 8, 11))
    path.write_bytes(content[:at] + struct.pack("<iii", 0, 8, end) + content[at + 12 :])
    with pytest.raises(UserError, match="a.arrow is damaged .*: ArrowInvalid: .*ffset"):
        list(Corpus(str(path), bad_documents="skip").documents())


@FORMATS
def test_a_prompt_and_its_answer_are_the_sentences_of_a_document(suffix, tmp_path):
    path = write(tmp_path / f"a.{suffix}", ROWS[3:], [" Who?  You? ", "Why?", "How?"])
    documents = list(Corpus(path, text_field="book,text").documents())
    assert [document.text for document in documents] == [
        "Who? You?\nThree.",
        "Why?\nFour.",
        "How?\nFive.",
    ]
    assert all(document.is_split for document in documents)
    path = write(tmp_path / f"b.{suffix}", ["", "Four."], ["Why?", "How?"])
    with pytest.raises(UserError, match=f"b.{suffix}:.*field 'text' has no text"):
        list(Corpus(path, text_field="book,text").documents())
