"""Where text is divided into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.text import sentences as sentences_lib
from bert_jax.text.sentences import split_sentences


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
        ("Τι κάνεις; Καλά. Ναι; Όχι.", ["Τι κάνεις;", "Καλά.", "Ναι;", "Όχι."]),
        ("Բարեւ։ Ինչպես ես։ Լավ եմ։", ["Բարեւ։", "Ինչպես ես։", "Լավ եմ։"]),
        ("It is so; Yes, it is.", ["It is so; Yes, it is."]),
    ],
)
def test_examples(text, expected):
    assert split_sentences(text) == expected


def test_a_language_has_its_own_rules():
    text = "Am 3. Mai war es warm. Im Juni nicht."
    assert split_sentences(text, "de") == ["Am 3. Mai war es warm.", "Im Juni nicht."]
    assert len(split_sentences(text)) == 3


@given(st.text(st.sampled_from("ab.?! \n\t\"'()“”•A1,;…\u3000。"), max_size=80))
@pytest.mark.parametrize("max_characters", [2**13, 20])
def test_only_white_space_is_lost(max_characters, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences_lib, "_MAX_CHARACTERS", max_characters)
        sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(s and s == " ".join(s.split()) for s in sentences)


@given(st.lists(st.sampled_from(["It is.", "Is it", "(1) Yes. No.", "Mr.", '"Oh!'])))
def test_paragraphs_are_split_independently(paragraphs):
    separately = [s for p in paragraphs for s in split_sentences(p)]
    assert split_sentences("\n\n".join(paragraphs)) == separately


def test_a_long_paragraph_is_split_like_a_short_one(monkeypatch):
    sentences = [
        f"This is number {n}, said {name}." for n in range(200) for name in ("Al", "Mr. B")
    ]
    assert split_sentences(" ".join(sentences)) == sentences
    monkeypatch.setattr(sentences_lib, "_MAX_CHARACTERS", 100)
    assert split_sentences(" ".join(sentences)) == sentences
    words = " ".join(["word"] * 100)
    assert split_sentences(words) == [words]
