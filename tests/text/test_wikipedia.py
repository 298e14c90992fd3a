"""Dumps of Wikipedia: pages, cuts, languages, and what is refused."""

import bz2
import html

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base.errors import UserError
from bert_jax.text.corpus import Corpus
from bert_jax.text.guess_format import is_text
from tests.text.test_corpus import COMPRESS, SUFFIXES, write

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo><namespaces>
    <namespace key="0" case="first-letter" />
    <namespace key="6" case="first-letter">Datei</namespace>
    <namespace key="14" case="first-letter">Kategorie</namespace>
  </namespaces></siteinfo>
"""
END = "</mediawiki>\n"
# An article must have 200 characters.
LONG = "Es war ein langer Satz. " * 9


def page(title, text=LONG, namespace=0, number=1, redirect=""):
    return (
        f"  <page>\n    <title>{title}</title><ns>{namespace}</ns><id>{number}</id>{redirect}\n"
        f"    <revision><id>7</id><text>{html.escape(text)}</text></revision>\n  </page>\n"
    )


ARTICLE = page("A", f"'''A''' [[Datei:A.jpg|x]]<ref>x</ref>{LONG}\n[[Kategorie:B]]", number=12)
OTHERS = (
    page("Diskussion:A", namespace=1)
    + page("B", "#REDIRECT [[A]]", redirect='<redirect title="A" />')
    + page("Kurz", "Kurz & <klein>.", number=5)
)


@SUFFIXES
@pytest.mark.parametrize("start", ["", "\ufeff", '<?xml version="1.0"?>\n<!-- mirror -->'])
def test_articles_of_a_dump(tmp_path, suffix, start):
    path = write(tmp_path / f"a-pages-articles.xml{suffix}", start + HEAD + ARTICLE + OTHERS + END)
    corpus = Corpus(path)
    (document,) = corpus.documents()
    assert document.text == f"A {LONG}".strip()
    assert (document.language, document.line, document.is_split) == ("de", 12, False)
    assert corpus.bad.dropped == {"fewer than 200 characters": 1}
    assert corpus.bad.first_dropped == {"fewer than 200 characters": [f"{path}: Kurz"]}
    assert corpus.guesses[path].format == "wikipedia"


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8),
    joints=st.lists(st.integers(0, 2000), max_size=6),
    part_bytes=st.integers(30, 900),
)
@settings(deadline=None)
@pytest.mark.parametrize("suffix", [".bz2", ""])
def test_any_cut_gives_all_pages_in_order(suffix, sizes, joints, part_bytes, tmp_path_factory):
    """The streams of a bz2 file may begin anywhere, also inside a page."""
    pages = [page(f"P{n}", LONG + f"{n} " * size, number=n) for n, size in enumerate(sizes)]
    content = (HEAD + "".join(pages) + END).encode()
    if suffix:
        bounds = [0, *sorted(joint * len(content) // 2000 for joint in joints), len(content)]
        pairs = zip(bounds[:-1], bounds[1:], strict=True)
        content = b"".join(bz2.compress(content[a:b]) for a, b in pairs)
    path = tmp_path_factory.mktemp("dump") / f"dump.xml{suffix}"
    path.write_bytes(content)
    corpus = Corpus(str(path))
    parts = corpus.parts(part_bytes)
    found = [document for part in parts for document in corpus.documents(part)]
    assert [document.line for document in found] == list(range(len(sizes)))
    assert found == list(corpus.documents())


def test_a_file_of_one_stream_is_not_cut(tmp_path):
    path = write(tmp_path / "a.xml.bz2", HEAD + ARTICLE * 30 + END)
    assert len(Corpus(path).parts(100)) == 1
    path = write(tmp_path / "a.xml.gz", HEAD + ARTICLE * 30 + END)
    assert len(Corpus(path).parts(100)) == 1


@pytest.mark.parametrize(
    "broken",
    [
        page("C & <D>").replace("&amp;", "&"),
        page("C").replace("</revision>", ""),
        page("C").replace("</page>", ""),
        page("C").replace("Satz", "\x01"),
    ],
)
@pytest.mark.parametrize("follows", ["", ARTICLE])
def test_a_broken_page_is_named_and_nothing_else_is_lost(tmp_path, broken, follows):
    path = write(tmp_path / "a.xml", HEAD + ARTICLE + broken + follows + END)
    with pytest.raises(
        UserError, match="a.xml: the page 'C[^']*' is not valid XML: .*skip continue"
    ):
        list(Corpus(path).documents())
    corpus = Corpus(path, bad_documents="skip")
    assert len(list(corpus.documents())) == (2 if follows else 1)
    assert corpus.bad.dropped == {"broken page": 1}


@pytest.mark.parametrize("suffix", ["", ".bz2"])
def test_a_truncated_dump_is_refused(tmp_path, suffix):
    for end in (page("C")[:-60], page("C")):
        path = write(tmp_path / f"a.xml{suffix}", HEAD + ARTICLE + end)
        with pytest.raises(UserError, match=f"a.xml{suffix} is not a complete dump: it ends with"):
            list(Corpus(path, bad_documents="skip").documents())
    path = tmp_path / "b.xml.bz2"
    streams = (HEAD, ARTICLE * 300, ARTICLE, END)
    path.write_bytes(b"".join(bz2.compress(text.encode()) for text in streams)[:-9])
    corpus = Corpus(str(path))
    *_, last = corpus.parts(100)
    with pytest.raises(UserError, match="b.xml.bz2 is damaged .*: EOFError"):
        list(corpus.documents(last))


def test_other_xml_is_no_dump(tmp_path):
    path = write(tmp_path / "a.xml", "<feed>In <mediawiki>.</feed>")
    assert len(list(Corpus(path).documents())) == 1


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_directory_stands_for_its_dumps_too(suffix):
    assert is_text(f"enwiki-20260101-pages-articles1.xml-p1p41242{suffix}")
    assert is_text(f"bgwiki-latest-pages-articles-multistream.xml{suffix}")
    assert not is_text(f"sitemap.xml{suffix}")
