"""Stores of rows and dumps: what is said, and that parts change nothing."""

import bz2

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.stores import make, options, parts_of
from tests.text.test_wikipedia import END, HEAD, page

WORDS = "the people of these states have a free and just government".split()


def sentence(number):
    return " ".join(WORDS[number % 11 :] + WORDS[: number % 7]) + f" {number}."


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """Returns a file of 2,500 sentences of 25 books, one a row."""
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    rows = {"text": map(sentence, range(2500)), "book": (n // 100 for n in range(2500))}
    parquet.write_table(pa.table({key: list(values) for key, values in rows.items()}), path)
    return str(path)


@pytest.mark.parametrize(
    ("values", "number", "warns"),
    [
        ({}, 2500, True),
        ({"table_rows": "sentences"}, 6, False),
        ({"table_rows": "sentences", "document_field": "book"}, 25, False),
    ],
)
def test_rows_of_a_sentence_get_a_warning(sentences, values, number, warns, tmp_path, capfd):
    metadata = make(options(sentences, heldout_fraction=0.1, **values), tmp_path / "store")
    assert sum(split["documents"] for split in metadata["splits"].values()) == number
    assert sum(split["sentences"] for split in metadata["splits"].values()) == 2500
    warning = "tokens on average, which is too few for pairs of segments: if each row is a sentence"
    assert (warning in capfd.readouterr().out) == warns


def test_a_dump_in_parts_has_the_same_text(tmp_path):
    pages = [page(f"P{n}", " ".join(map(sentence, range(n, n + 30)))) for n in range(30)]
    short = page("Kurz", "Kurz.")
    path = tmp_path / "dump.xml.bz2"
    texts = [HEAD, *("".join([*pages[n : n + 5], short]) for n in range(0, 30, 5)), END]
    path.write_bytes(b"".join(bz2.compress(text.encode()) for text in texts))
    stores = [make(options(str(path)), tmp_path / "one")]
    with parts_of(500):
        stores.append(make(options(str(path)), tmp_path / "parts"))
    for key in ("splits", "dropped_documents", "first_dropped", "vocab_size", "tokenizer"):
        assert stores[0][key] == stores[1][key]
    assert stores[0]["dropped_documents"] == {"fewer than 200 characters": 6}


def test_the_language_of_a_dump_divides_the_text_of_a_vocabulary(tmp_path):
    """With English rules, a sentence would end after "Am 3.", and its next word begin a text."""
    text = "Am 3. Oktober war er bzw. Anna da. " * 10
    path = tmp_path / "dump.xml"
    path.write_text(HEAD + "".join(page(f"P{n}", text) for n in range(4)) + END)
    trained = {"tokenizer": "byte_bpe", "lowercase": False}
    found = [
        make(options(str(path), language=code, **trained), tmp_path / f"store{code}", 300)
        for code in ("", "de", "en")
    ]
    named, given, english = (metadata["tokenizer"]["fingerprint"] for metadata in found)
    assert named == given != english
