"""Inputs cut into parts: their documents, joined, are those of the whole."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import Piece, cut

LINES = st.sampled_from(
    [b"\n", b"\r\n", b" \t\n", b"a\n", b"It is.\r\n", b"\xc3\xa9 two words.\n", b"\xef\xbb\xbfb\n"]
)
FILES = st.tuples(
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
    st.lists(LINES, max_size=12),
    st.sampled_from([b"", b"last", b"last\r", b" "]),
).map(lambda file: file[0] + b"".join(file[1]) + file[2])


def as_json(content):
    """Puts the lines of a file into JSON; blank ones stay."""
    lines = content.removeprefix(b"\xef\xbb\xbf").decode().split("\n")
    return "\n".join(json.dumps({"text": line}) if line.strip() else line for line in lines)


@pytest.mark.parametrize("format", ["sentences", "jsonl"])
@given(contents=st.lists(FILES, min_size=1, max_size=3), part_bytes=st.integers(1, 60))
@settings(deadline=None)
def test_the_parts_of_an_input_have_all_its_documents_in_order(
    format, contents, part_bytes, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("texts")
    for number, content in enumerate(contents):
        content = as_json(content).encode() if format == "jsonl" else content
        (folder / f"{number}.txt").write_bytes(content)
    corpus = Corpus(f"{folder}/*", format=format, bad_documents="skip")
    whole = list(corpus.documents())
    parts = corpus.parts(part_bytes)
    pieces = [piece for part in parts for piece in part]
    for index, source in enumerate(corpus.sources):
        ours = [piece for piece in pieces if piece.source == index]
        if ours != [Piece(index)]:
            bounds = [0, *(piece.stop for piece in ours)]
            assert [piece.start for piece in ours] == bounds[:-1]
            assert bounds[-1] == source["bytes"]
    found = [document for part in parts for document in corpus.documents(part)]
    assert [(d.text, d.is_split) for d in found] == [(d.text, d.is_split) for d in whole]
    assert [str(d.place) for d in found] == [str(d.place) for d in whole]


def test_files_fill_parts_in_order():
    sizes = [3, 4, 4, 25, 2, 9]
    sources = [{"path": str(size), "bytes": size} for size in sizes]
    assert cut(sources, 10, lambda source: True) == [
        [Piece(0), Piece(1)],
        [Piece(2)],
        [Piece(3, 0, 10)],
        [Piece(3, 10, 20)],
        [Piece(3, 20, 25), Piece(4)],
        [Piece(5)],
    ]
    assert cut(sources, 10, lambda source: False) == [
        [Piece(0), Piece(1)],
        [Piece(2)],
        [Piece(3)],
        [Piece(4)],
        [Piece(5)],
    ]


@pytest.mark.parametrize(
    "name, options, number",
    [
        ("a.jsonl", {}, 4),
        ("a.jsonl", {"encoding": "latin-1"}, 1),
        ("a.jsonl.gz", {}, 1),
        ("a.csv", {}, 1),
        ("a.txt", {}, 4),
        ("a.txt", {"format": "documents"}, 1),
    ],
)
def test_only_some_files_are_cut(name, options, number, tmp_path):
    text = b"It is one.\nIt is two.\n\n" * 40
    (tmp_path / name).write_bytes(gzip.compress(os.urandom(900)) if ".gz" in name else text)
    size = (tmp_path / name).stat().st_size
    assert len(Corpus(f"{tmp_path}/*", **options).parts(-(-size // 4))) == number


def test_messages_name_the_line_of_the_whole_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "So it is."}\n' * 50 + "broken\n" + '{"text": "It was."}\n' * 9)
    corpus = Corpus(str(path))
    with pytest.raises(UserError, match="a.jsonl:51: not a JSON object"):
        list(corpus.documents(corpus.parts(400)[-2]))


def test_a_file_that_changed_after_it_was_listed_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.")
    corpus = Corpus(str(path))
    path.write_text("One, two.")
    with pytest.raises(UserError, match="a.txt had 4 bytes when the input was listed and has 9"):
        list(corpus.documents())
