"""prepare --preview: the first documents as sentences; nothing is written."""

import pytest

from bert_jax.prepare import _print_documents
from tests.stores import options
from tests.text.test_wikipedia import ARTICLE, END, HEAD

TWO = "One fish. Two fish.\n\nRed fish here."
FILES = {
    "a.txt": (TWO, ["One fish.", "Two fish.", "Red fish here."]),
    "b.txt": ("One.\nTwo.\n\nThree.\nFour.\n", ["One.", "Two."]),
    "a.fasta": (">p\nMK\nT\n", ["M K T"]),
    "a.xml": (HEAD + ARTICLE + END, ["A Es war ein langer Satz.", "Es war ein langer Satz."]),
}


@pytest.mark.parametrize("name", FILES)
def test_documents_are_shown_as_sentences(name, tmp_path, capsys):
    text, sentences = FILES[name]
    (tmp_path / name).write_text(text)
    before = sorted(tmp_path.iterdir())
    _print_documents(options(tmp_path / name), 1)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path / name}:")
    assert [line.strip() for line in lines[: len(sentences)]] == sentences
    assert lines[-1].startswith("data.format=auto read ")
    assert sorted(tmp_path.iterdir()) == before


def test_tokens_and_long_documents(tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n##s\n.\n")
    (tmp_path / "a.txt").write_text("Ones. One?\n\n" * 11)
    _print_documents(options(tmp_path / "a.txt", vocab=str(tmp_path / "vocab.txt")), 5)
    first, second, third, *_, more, _ = capsys.readouterr().out.splitlines()
    assert first == f"{tmp_path}/a.txt:1: 22 sentences"
    assert [second.strip(), third.strip()] == ["one ##s .", "one [UNK]"]
    assert more.strip() == "... and 2 more"
