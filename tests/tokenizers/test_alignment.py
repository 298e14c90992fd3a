"""The spans of pieces in the text, checked by tokenizing slices, and by hand."""

import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.golden.tokenization import HAND_PICKED, VOCABULARY
from tests.tokenizers.test_tokenizers import from_file, sample_texts, train

MARKS = "\u0301\u0323\u0327\u0308\u302e\U0001d165\u0345"
CHARACTERS = st.one_of(
    st.sampled_from(list("aeouABInthe  .,$-'\n\t中国한국éÅñİßΣσς�\x00\u00ad\u200d㎏½" + MARKS)),
    st.characters(exclude_categories=["Cs"]),
)
TEXT = st.one_of(st.text(CHARACTERS, max_size=30), st.sampled_from(HAND_PICKED))
ALL = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def lowercase(request):
    return request.param


@pytest.fixture(scope="module")
def wordpiece(lowercase):
    path = VOCABULARY
    return from_file("wordpiece", path, lowercase=lowercase, max_chars=100)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def sentencepiece(request, lowercase):
    return train(request.param, sample_texts(4), 500, lowercase)


def check_shape(tokenizer, text):
    ids, spans = tokenizer.encode_aligned(text)
    assert ids.dtype == spans.dtype == np.int32
    np.testing.assert_array_equal(ids, tokenizer.encode_batch([text])[0])
    assert spans.shape == (len(ids), 2)
    assert (np.diff(spans, axis=0) >= 0).all()
    assert (spans[:, 0] < spans[:, 1]).all()
    if len(ids):
        assert spans[0, 0] >= 0 and spans[-1, 1] <= len(text)
    return ids.tolist(), spans.tolist()


def words_of(tokenizer, text):
    """Lists the slice of the text, and the ids, of each word."""
    ids, spans = check_shape(tokenizer, text)
    starts = [i for i, token in enumerate(ids) if tokenizer.is_word_start_V[token]]
    pairs = zip(starts, [*starts[1:], len(ids)], strict=True)
    return [(text[spans[i][0] : spans[j - 1][1]], ids[i:j]) for i, j in pairs]


def test_slices_of_words_give_their_pieces(wordpiece):
    @given(TEXT, st.data())
    def check(text, data):
        ids, spans = check_shape(wordpiece, text)
        covered = {i for start, end in spans for i in range(start, end)}
        between = "".join(c if i not in covered else " " for i, c in enumerate(text))
        assert wordpiece.encode_batch([between])[0].size == 0
        starts = [i for i, token in enumerate(ids) if wordpiece.is_word_start_V[token]]
        if not starts:
            return
        first = data.draw(st.integers(0, len(starts) - 1))
        last = data.draw(st.integers(first, len(starts) - 1))
        i, j = starts[first], [*starts, len(ids)][last + 1]
        words = text[spans[i][0] : spans[j - 1][1]]
        assert wordpiece.encode_batch([words])[0].tolist() == ids[i:j]

    check()


def test_every_single_character(wordpiece):
    # Every 31st character, because all of Unicode takes 20 seconds.
    text = " ".join(ALL[::31])
    ids, spans = check_shape(wordpiece, text)
    # Every second character is a space, and each piece lies on one of the others.
    assert all(start % 2 == 0 and (end - start) in (1, 3) for start, end in spans)
    assert len({start for start, _ in spans}) > 4_500


def test_sentencepiece(sentencepiece):
    @given(TEXT)
    @example("0\r\x850")
    def check(text):
        text = text.strip() + "x"
        _, spans = check_shape(sentencepiece, text)
        assert not any(text[start].isspace() for start, _ in spans)

    check()


def test_sentencepiece_slices_of_words_give_their_pieces(sentencepiece):
    text = "fellow citizens of the  senate, and of the house of representatives."
    for word, ids in words_of(sentencepiece, text):
        assert sentencepiece.encode_batch([word])[0].tolist() == ids


def test_sentencepiece_words_include_stripped_accents():
    tokenizer = train("sentencepiece", sample_texts(4), 500, lowercase=True)
    text = "fe\u0301llow Cítizens of the  İse\u0323\u0302nate"
    assert [word for word, _ in words_of(tokenizer, text)] == text.split()


@pytest.mark.parametrize(
    "text, slices",
    [
        ("The Cafe\u0301, Café.", ["The", "Cafe\u0301", ",", "Café", "."]),
        ("soft\u00adly\x00 the", ["soft\u00adly", "the"]),
        ("中国the力", ["中", "国", "the", "力"]),
        ("$3 zq\U0010ffff\u200bzq", ["$", "3", "zq\U0010ffff\u200bzq"]),
        (" \u0301 the \u0301", ["the"]),
    ],
)
def test_words_by_hand(text, slices):
    tokenizer = from_file("wordpiece", VOCABULARY, max_chars=100)
    assert [word for word, _ in words_of(tokenizer, text)] == slices


def test_pieces_of_a_word_cover_it():
    tokenizer = from_file("wordpiece", VOCABULARY, max_chars=100)
    text = "The Unáffáble"
    ids, spans = tokenizer.encode_aligned(text)
    assert len(ids) > 3
    assert "".join(text[start:end] for start, end in spans[1:]) == "Unáffáble"
    pieces = [tokenizer.id_to_token(i).removeprefix("##") for i in ids]
    assert [end - start for start, end in spans] == [len(piece) for piece in pieces]
