"""prepare --preview: the first documents as sentences; nothing is written."""

import pytest

from bert_jax.base.errors import UserError
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


def test_a_table_is_one_long_sentence(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("word " * 2000)
    _print_documents(options(tmp_path / "a.txt"), 1)
    _, sentence, _ = capsys.readouterr().out.splitlines()
    assert sentence == f"    {'word ' * 60}... (9,699 more)"


def test_the_formats_of_several_files(tmp_path, capsys):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(TWO)
    _print_documents(options(tmp_path), 2)
    assert f" read {tmp_path / 'a.txt'} and 1 more as " in capsys.readouterr().out
    _print_documents(options(tmp_path), 3)
    assert f" read {tmp_path / 'a.txt'} and 2 more as " in capsys.readouterr().out


def test_standard_input_is_refused():
    with pytest.raises(UserError, match="no file matches '-'"):
        _print_documents(options("-"), 1)
