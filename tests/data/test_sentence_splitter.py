import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.data.sentence_splitter import split_sentences


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        (" \n\n \n", []),
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("A single line\nbreak is a space.", ["A single line break is a space."]),
        ("No stop\n\nnext paragraph", ["No stop", "next paragraph"]),
        ("First\n \t\nsecond\r\n\r\nthird", ["First", "second", "third"]),
        ("Mr. Smith paid $3.50. He left.", ["Mr. Smith paid $3.50.", "He left."]),
        ("J. R. R. Tolkien wrote it.", ["J. R. R. Tolkien wrote it."]),
        ("(2) It is. So it is.", ["(2) It is.", "So it is."]),
        ("• It is. So it is.", ["• It is.", "So it is."]),
        ("(b)", ["(b)"]),
    ],
)
def test_examples(text, expected):
    assert split_sentences(text) == expected


@given(st.text(st.sampled_from("ab.?! \n\t\"'()“”•A1,;…\u3000。"), max_size=80))
def test_only_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(s and s == " ".join(s.split()) for s in sentences)


@given(st.lists(st.sampled_from(["It is.", "Is it", "(1) Yes. No.", "Mr.", '"Oh!'])))
def test_paragraphs_are_split_independently(paragraphs):
    separately = [s for p in paragraphs for s in split_sentences(p)]
    assert split_sentences("\n\n".join(paragraphs)) == separately
