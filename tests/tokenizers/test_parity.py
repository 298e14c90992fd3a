"""WordPiece against recorded ids of `transformers`, and against a plain implementation.

benchmarks/golden/tokenization.py recorded the ids; see its docstring.
"""

import functools
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from benchmarks.golden.tokenization import RELEASED, SMALL, VOCABULARY
from bert_jax import tokenizers
from bert_jax.tokenizers.wordpiece import WordSplitter
from tests.golden.inputs import read_json

RUNS = [(SMALL, True), (SMALL, False), *RELEASED.items()]
TRANSFORMERS_MAX_CHARS, ORIGINAL_MAX_CHARS = 100, 200


# A plain implementation of google-research/bert's rules: clean the text, put spaces around CJK,
# strip accents, split off punctuation, greedy longest match. Each character is lower-cased by
# itself, as in `transformers`.


def is_cjk(c):
    ranges = (
        "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B820-2CEAF F900-FAFF 2F800-2FA1F"
    )
    return any(
        int(a, 16) <= ord(c) <= int(b, 16) for a, b in (r.split("-") for r in ranges.split())
    )


def basic_words(text, lowercase):
    text = "".join(
        " " if c in "\t\n\r" or unicodedata.category(c) == "Zs" else c
        for c in text
        if c in "\t\n\r" or not (ord(c) in (0, 0xFFFD) or unicodedata.category(c)[0] == "C")
    )
    text = "".join(f" {c} " if is_cjk(c) else c for c in text)
    words = []
    for word in text.split():
        if lowercase:
            word = unicodedata.normalize("NFD", "".join(c.lower() for c in word))
            word = "".join(c for c in word if unicodedata.category(c) != "Mn")
        piece = ""
        for c in word:
            if (c.isascii() and not c.isalnum()) or unicodedata.category(c)[0] == "P":
                words += [piece, c]
                piece = ""
            else:
                piece += c
        words.append(piece)
    return [part for word in words if word for part in word.split()]


def greedy_pieces(word, vocabulary, max_chars):
    if len(word) > max_chars:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def reference_tokens(text, vocabulary, lowercase, max_chars):
    words = basic_words(text, lowercase)
    return [p for word in words for p in greedy_pieces(word, vocabulary, max_chars)]


@pytest.fixture(scope="module")
def golden():
    return read_json("tokenization.json.gz")


@pytest.fixture(params=RUNS, ids=lambda run: f"{run[0]}-{'uncased' if run[1] else 'cased'}")
def run(request):
    return request.param


@pytest.fixture
def vocabulary(run, request):
    """The path of a vocab.txt, and whether it is uncased."""
    name, lowercase = run
    if name == SMALL:
        return VOCABULARY, lowercase
    return request.getfixturevalue("shared_data") / "vocab" / name / "vocab.txt", lowercase


def make(path, lowercase, max_chars=TRANSFORMERS_MAX_CHARS):
    return tokenizers.from_file(
        "wordpiece", path, lowercase=lowercase, max_input_chars_per_word=max_chars
    )


def clean(text):
    """Removes the characters that every BERT drops."""
    kept = (c for c in text if c in "\t\n\r" or unicodedata.category(c)[0] != "C")
    return "".join(kept).replace("\ufffd", "")


def is_old(character):
    """Returns whether all tables agree on a character: it is in Unicode 3.2, or a surrogate."""
    category = unicodedata.ucd_3_2_0.category(character)
    return category != "Cn" and category == unicodedata.category(character)


def test_ids_match_transformers(golden, run, vocabulary):
    """Compares every id of 3,400 texts, with one known difference.

    `transformers`' slow tokenizer composes text (NFC), which affects only cased text. The original,
    `transformers`' fast tokenizer and bert_jax do not. Our tokenizer therefore gets the composed
    form of each text. The slow tokenizer also uses the tables of its Python, and drops characters
    that these lack; texts with characters on which the tables disagree are left out.
    """
    tokenizer = make(*vocabulary)
    (recorded,) = [r for r in golden["runs"] if (r["vocabulary"], r["lowercase"]) == run]
    composed = left_out = 0

    lowercase = tokenizer.options["lowercase"]
    split, kept = WordSplitter(lowercase).split, []

    @functools.cache
    def is_agreed(character):
        text = f"a{character}b"
        return split(text) == basic_words(text, lowercase)

    for text, expected in zip(golden["texts"], recorded["ids"], strict=True):
        same = unicodedata.normalize("NFC", clean(text))
        if not lowercase and same != clean(text):
            composed += 1
            text = same
        if not all(map(is_agreed, text)):
            left_out += 1
            continue
        kept.append((text, expected))
    found = tokenizer.encode_batch([text for text, _ in kept])
    for ids, (text, expected) in zip(found, kept, strict=True):
        assert ids.tolist() == expected, ascii(text)
    assert len(golden["texts"]) > 3300
    assert composed < 900 and left_out < 500


@settings(max_examples=100)
@given(st.data())
def check_against_the_rules(tokenizer, vocabulary, data):
    text = data.draw(
        st.text(st.characters().filter(is_old), max_size=30)
        | st.text("aeΣİé中가'\u0301 ,", max_size=30)
    )
    max_chars = tokenizer.options["max_input_chars_per_word"]
    expected = reference_tokens(text, vocabulary, tokenizer.options["lowercase"], max_chars)
    (ids,) = tokenizer.encode_batch([text])
    assert [tokenizer.id_to_token(i) for i in ids] == expected


def test_any_text_agrees_with_the_rules(vocabulary):
    tokenizer = make(*vocabulary)
    check_against_the_rules(tokenizer, set(tokenizer.tokens))


@pytest.mark.parametrize("character", ["a", "é", "e\u0301"])
def test_limit_on_the_length_of_words(character):
    """A word of more than 200 characters, without accents, is a single [UNK]."""
    path = VOCABULARY
    for max_chars in (TRANSFORMERS_MAX_CHARS, ORIGINAL_MAX_CHARS):
        tokenizer = make(path, True, max_chars)
        longest, longer = tokenizer.encode_batch(
            [character * max_chars, f"a {character * (max_chars + 1)}, a"]
        )
        assert tokenizer.unk_id not in longest
        assert sum(len(tokenizer.id_to_token(i).removeprefix("##")) for i in longest) == max_chars
        assert [tokenizer.id_to_token(i) for i in longer] == ["a", "[UNK]", ",", "a"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_has_the_words_of_the_library(lowercase):
    """They are those of `transformers`' fast tokenizers, whatever the version of Python."""
    normalize = normalizers.BertNormalizer(strip_accents=lowercase, lowercase=lowercase)
    split = WordSplitter(lowercase).split
    # No private-use or unassigned planes.
    codes = [*range(0xD800), *range(0xE000, 0x32000), *range(0xE0000, 0xE0200)]
    for first in range(0, len(codes), 100):
        text = " ".join(f"a{chr(code)}b" for code in codes[first : first + 100])
        pieces = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalize.normalize_str(text))
        assert split(text) == [piece for piece, _ in pieces], hex(codes[first])


def test_characters_newer_than_the_tables_are_kept():
    # Emoji of Unicode 13 to 17, and a code point without a character.
    text = "a\U0001fad6b \U0001fae8 \U0001fac8 \U0001faff"
    for lowercase in (True, False):
        assert WordSplitter(lowercase).split(text) == text.split()
