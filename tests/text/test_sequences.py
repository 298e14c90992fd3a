"""Sequences: one a line, and FASTA."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.text import sequences
from bert_jax.text.corpus import Corpus
from tests.text.test_corpus import SUFFIXES, write

FASTA = ">sp|P1 first protein\nMKTA\nYIAK \n\n>P2\nACGT*\n>empty\n>P3\r\nNNN\r\n"


def found(path, **options):
    return [(d.id, d.line, d.text) for d in Corpus(str(path), **options).documents()]


@SUFFIXES
def test_fasta(tmp_path, suffix):
    path = write(tmp_path / f"a.fasta{suffix}", FASTA)
    corpus = Corpus(path)
    assert [(d.id, d.line, d.text) for d in corpus.documents()] == [
        ("sp|P1", 1, "M K T A Y I A K"),
        ("P2", 5, "A C G T *"),
        ("P3", 8, "N N N"),
    ]
    assert corpus.bad.first_dropped == {"empty": [f"{path}:7"]}


def test_long_records_are_divided(tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "DOCUMENT_CHARACTERS", 8)
    path = write(tmp_path / "a.fa", ">chr1\nACGT\nACGT\nAC\n>chr2\nACGTACGT\n")
    texts = [(id, line, text.replace(" ", "")) for id, line, text in found(path)]
    assert texts == [("chr1", 1, "ACGTACGT"), ("chr1", 4, "AC"), ("chr2", 5, "ACGTACGT")]


@pytest.mark.parametrize("apart", [False, True])
def test_lines(tmp_path, apart):
    path = write(tmp_path / "a.txt", "MKT\n\n  AC GT\r\nN")
    texts = ["M K T", "A C G T", "N"] if apart else ["MKT", "AC GT", "N"]
    rows = found(path, format="lines", characters_apart=apart)
    assert rows == [("", line, text) for line, text in zip((1, 3, 4), texts, strict=True)]
    assert all(d.is_split for d in Corpus(path, format="lines").documents())


@pytest.mark.parametrize("format", ["lines", "fasta"])
@given(
    lines=st.lists(
        st.sampled_from(["MKT\n", "\n", "; M\n", ">a b\n", ">c\r\n", "AC\r\n"]), max_size=15
    ),
    part_bytes=st.integers(1, 30),
)
def test_any_cut_gives_all_sequences_in_order(format, lines, part_bytes, tmp_path_factory):
    path = tmp_path_factory.mktemp("sequences") / "a.txt"
    path.write_text(">first\nM\n" + "".join(lines), newline="")
    corpus = Corpus(str(path), format=format)
    whole = list(corpus.documents())
    cut = [d for part in corpus.parts(part_bytes) for d in corpus.documents(part)]
    assert [(d.text, d.id, str(d.place)) for d in cut] == [
        (d.text, d.id, str(d.place)) for d in whole
    ]


def test_other_text_is_not_fasta(tmp_path):
    path = write(tmp_path / "a.txt", "\nMKT\n>a\nM\n")
    with pytest.raises(UserError, match=r"a.txt:2: not FASTA: a record begins with \">\""):
        found(path, format="fasta")
    path = write(tmp_path / "a.fa", b">a\nM\xff\n>b\nK\n")
    with pytest.raises(UserError, match="a.fa:2: not valid UTF-8"):
        found(path)
