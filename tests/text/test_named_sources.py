"""`data.sources`: names, languages, and how often each source is read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.text.named_sources import (
    REPEAT_UNIT,
    check_weights,
    language_of,
    named_inputs,
    repeats,
    source_weights,
)
from bert_jax.text.sources import find_named_sources


def test_names_and_inputs():
    sources = ("en=a.txt,b/year=1900.txt", "bg-books=gs://c/d.txt,en=x\\,y.txt")
    inputs = {"en": ["a.txt", "b/year=1900.txt", "x,y.txt"], "bg-books": ["gs://c/d.txt"]}
    assert named_inputs(sources) == inputs
    assert [*map(language_of, inputs)] == ["en", "bg"]
    assert named_inputs(()) == {}
    assert named_inputs(("texts",)) == {"": ["texts"]}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("a.txt,en=b.txt", "data.sources has 'a.txt' of the source ''; write NAME=FILES"),
        ("en=", "data.sources has '' of the source 'en'; write NAME=FILES"),
        ("books=a.txt", "source 'books'; write NAME=FILES, where the name is the code of a lang"),
        ("en=a.txt,EN=b.txt", "has 'b.txt' of the source 'EN'; write NAME=FILES"),
    ],
)
def test_bad_names(sources, message):
    with pytest.raises(UserError, match=re.escape(message)):
        named_inputs((sources,))


def test_files_of_sources(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    found = find_named_sources((f"en={tmp_path}/a.txt,el={tmp_path}/b.txt",), "text")
    assert [(s["source"], s["path"]) for s in found] == [
        ("en", f"{tmp_path}/a.txt"),
        ("el", f"{tmp_path}/b.txt"),
    ]
    with pytest.raises(UserError, match="a.txt is in the sources en and el: name it once"):
        find_named_sources((f"en={tmp_path}/a.txt,el={tmp_path}/*.txt",), "text")
    with pytest.raises(UserError, match="no file matches '.*/none.txt'"):
        find_named_sources((f"en={tmp_path}/a.txt,el={tmp_path}/none.txt",), "text")


def test_a_folder_names_its_sources(tmp_path):
    (tmp_path / "en-books").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("en-books/a.txt", "en-books/b.txt", "bg.jsonl", "zh_classical.xml.bz2"):
        (tmp_path / name).write_text("x")
    found = find_named_sources((str(tmp_path),), "text")
    assert [(s["source"], s["path"]) for s in found] == [
        ("bg", f"{tmp_path}/bg.jsonl"),
        ("en-books", f"{tmp_path}/en-books/a.txt"),
        ("en-books", f"{tmp_path}/en-books/b.txt"),
        ("zh_classical", f"{tmp_path}/zh_classical.xml.bz2"),
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("en.txt", "README.md"), "where 'README.md' does not begin with the code of a language"),
        (("en.txt", "en.jsonl"), "en.txt are both named en: put them into one folder en, or ren"),
        (("en/a.txt", "en.txt"), "en.txt are both named en: put them into one folder en, or rena"),
        ((".hidden",), "which is no folder with files or folders named by their languages; or"),
        (("en/a.html",), "no file matches '.*/en' \\(of a directory, the files are read that"),
    ],
)
def test_folders_that_name_no_sources(names, message, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    with pytest.raises(UserError, match=message):
        find_named_sources((str(tmp_path),), "text")


def test_a_single_source_without_a_name_must_be_a_folder(tmp_path):
    (tmp_path / "en.txt").write_text("x")
    with pytest.raises(UserError, match="data.sources is .*/en.txt, which is no folder with files"):
        find_named_sources((f"{tmp_path}/en.txt",), "text")


@pytest.mark.parametrize("weights", ["en", "en=0", "en=-1", "en=nan", "en=inf", "en=1,en=2", "=1"])
def test_bad_weights(weights):
    if weights == "=1":
        with pytest.raises(UserError, match="has , but config.data.sources has en; both must have"):
            check_weights(["en"], (weights,))
        return
    with pytest.raises(UserError, match="each source must have one positive number"):
        source_weights((weights,))


SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 10**12), min_size=1)


@given(SIZES, st.floats(0, 1))
def test_repeats_give_the_shares(sizes, exponent):
    found, total = repeats(sizes, exponent), sum(sizes.values())
    powers = {name: (size / total) ** exponent for name, size in sizes.items()}
    for name, size in sizes.items():
        share = found[name] / REPEAT_UNIT * size / total
        assert share == pytest.approx(powers[name] / sum(powers.values()), rel=1e-6, abs=1e-6)


@given(SIZES)
def test_exponent_1_reads_everything_once(sizes):
    assert set(repeats(sizes).values()) == {REPEAT_UNIT}


def test_weights_are_shares():
    sizes = {"en": 900, "bg": 100}
    assert repeats(sizes, 1.0, ("en=3,bg=1",)) == {
        "en": round(REPEAT_UNIT * 0.75 / 0.9),
        "bg": round(REPEAT_UNIT * 0.25 / 0.1),
    }
