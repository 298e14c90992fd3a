"""Tokens added to a vocabulary: which ones, where, and what they replace."""

import random
from collections import Counter

import pytest
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.interop.tokenizer_json import to_library
from bert_jax.tokenizers import training
from bert_jax.tokenizers.bpe import content_of
from bert_jax.tokenizers.extension import extended_size, replaced_pieces, with_markers
from bert_jax.tokenizers.factory import load_kind
from bert_jax.tokenizers.training import extend, tokens_per_word
from tests.interop.small_bert import TOKENS, make_tokenizer
from tests.interop.small_tokenizers import train
from tests.tokenizers.test_tokenizers import BERT, SPECIALS, sample_texts

# Pieces so far: a ##b, b ##a, c ##ing, the, d ##e ##f, [UNK].
COUNTS = [("ab", 5), ("ba", 5), ("cing", 9), ("the", 99), ("def", 4), ("xyz", 50), ("fed", 1)]
BPE_COUNTS = [("Ġphosphorylation", 9), ("Ġkinase", 7), ("Ġkinases", 3)]


def with_placeholders(**options):
    """Returns the small tokenizer with two placeholders in the middle of its vocabulary."""
    tokens = [*TOKENS[:7], "[unused0]", *TOKENS[7:12], "[unused7]", *TOKENS[12:]]
    tokenizer = make_tokenizer(**options)
    return type(tokenizer)(tokens, lowercase=True, max_input_chars_per_word=200)


def byte_bpe(*unused, composes=False):
    trained = train("byte_bpe", False)
    special, tokens = trained.special_tokens, [*trained.tokens, *unused]
    content = content_of("byte_bpe", tokens, trained.merges, special, composes=composes)
    return load_kind("byte_bpe").tokenizer(content, special_tokens=special, add_prefix_space=False)


def test_words_that_save_most_take_placeholders_first():
    old = with_placeholders()
    new = extend(old, "3", random.sample(COUNTS, len(COUNTS)))
    # "cing" saves 9 tokens, "def" 8 and "ab" 5, as "ba", which comes later.
    assert (new.tokens[7], new.tokens[13], new.tokens[len(old.tokens) :]) == ("cing", "def", ["ab"])
    assert extended_size(old, "3") == new.vocab_size == old.vocab_size + 1
    assert all(new.ids[token] == i for token, i in old.ids.items() if "unused" not in token)
    assert [ids.tolist() for ids in new.encode_batch(["def defa ab"])] == [
        [new.ids[token] for token in ("def", "def", "##a", "ab")]
    ]
    assert replaced_pieces(old, new) == {
        i: [old.ids[token] for token in pieces]
        for i, pieces in (
            (7, ("c", "##ing")),
            (13, ("d", "##e", "##f")),
            (old.vocab_size, ("a", "##b")),
        )
    }
    assert tokens_per_word(old, [("def", 2), ("the", 2)]) == 2
    assert tokens_per_word(new, [("def", 2), ("the", 2)]) == 1


def test_other_vocabularies_are_no_extension():
    old = with_placeholders()
    assert replaced_pieces(old, old) == {}
    assert replaced_pieces(old, make_tokenizer()) is None
    assert replaced_pieces(make_tokenizer(), make_tokenizer(lowercase=False)) is None


def test_byte_bpe_gets_further_merges():
    old = byte_bpe()
    new = extend(old, "13", random.sample(BPE_COUNTS, 3))
    assert new.tokens[: old.vocab_size] == old.tokens and new.vocab_size == old.vocab_size + 13
    assert new.merges[: len(old.merges)] == old.merges
    # The first merge joins the most frequent pair of neighbors.
    pairs = {}
    for word, count in BPE_COUNTS:
        ids = [piece.value for piece in old.library_model.tokenize(word)]
        for pair in zip(ids, ids[1:], strict=False):
            pairs[pair] = pairs.get(pair, 0) + count
    assert pairs[new.merges[len(old.merges)]] == max(pairs.values())
    assert len(new.encode_batch([" phosphorylation"])[0]) == 1
    # Every added token has the text of the pieces that it replaces.
    for i, ids in replaced_pieces(old, new).items():
        assert "".join(old.tokens[piece] for piece in ids) == new.tokens[i] and len(ids) > 1
    assert new.decode(new.encode_batch(["a kinase, kinases"])[0]) == "a kinase, kinases"


def test_a_merge_may_give_a_token_that_is_there_already():
    # "abc" is a token, but the pieces of "abc" are "ab" and "c".
    tokens, merges = byte_bpe().tokens, [("a", "b"), ("b", "c"), ("a", "bc")]
    letters = [token for token in tokens if len(token) == 1]
    content = content_of("byte_bpe", [*SPECIALS, *letters, "ab", "bc", "abc"], merges, BERT)
    old = load_kind("byte_bpe").tokenizer(content, special_tokens=BERT, add_prefix_space=False)
    assert [old.tokens[i] for i in old.word_pieces("abc")] == ["ab", "c"]
    new = extend(old, "1", [("abcd", 9), ("abc", 9)])
    assert new.merges == [*old.merges, ("ab", "c"), ("abc", "d")]
    assert new.tokens == [*old.tokens, "abcd"]


def test_byte_bpe_no_longer_looks_for_placeholders_that_are_gone():
    old = byte_bpe("[unused0]", "[unused1]", composes=True)
    tokens = old.tokens
    places = range(old.vocab_size - 2, old.vocab_size)
    old = old.with_added({i: AddedToken(tokens[i]) for i in places}, "a test")
    new = extend(old, "1", BPE_COUNTS)
    assert new.vocab_size == old.vocab_size
    composed, decomposed = new.encode_batch(["\xe9", "e\u0301"])
    assert composed.tolist() == decomposed.tolist()
    text = "[unused0] [unused1]"
    assert len(tokens) - 2 in old.encode_batch([text])[0]
    assert len(tokens) - 2 not in new.encode_batch([text])[0]
    assert len(tokens) - 1 in new.encode_batch([text])[0]


def unigram(lowercase=True, **options):
    return training.train(
        "sentencepiece", sample_texts(), vocab_size=700, lowercase=lowercase, **options
    )


@pytest.mark.parametrize("rules", ["plain", "albert"])
def test_words_of_sentencepiece_begin_with_the_space(rules):
    words = unigram(sentencepiece_rules=rules).words
    assert words("The  kinase, (Kinasé) p53") == "▁the ▁kinase , ( kinase ) ▁p53".split()
    assert words("") == words(" ") == []


@pytest.mark.parametrize("rules", ["plain", "albert"])
def test_sentencepiece_gets_the_words_that_save_most(rules):
    old = unigram(sentencepiece_rules=rules)
    texts = [*sample_texts(), *["Phosphokinase (phosphokinase) binds phosphokinases."] * 9]
    counts = Counter(word for text in texts for word in old.words(text))
    new = extend(old, "30", random.sample(list(counts.items()), len(counts)))
    assert new.tokens[:700] == old.tokens and new.vocab_size == extended_size(old, "30") == 730
    saved = {word: n * (len(old.word_pieces(word)) - 1) for word, n in counts.items() if n > 1}
    assert sorted(new.tokens[700:]) == sorted(sorted(saved, key=lambda x: (-saved[x], x))[:30])
    assert {"▁phosphokinase", "phosphokinase"} <= {*new.tokens[700:]}
    for word in new.tokens[700:]:
        assert new.word_pieces(word) == [new.ids[word]]
    # Where a text has a new token, it had the pieces that the token replaces.
    replaced, library = replaced_pieces(old, new), to_library(new)
    for text, ids in zip(texts, new.encode_batch(texts), strict=True):
        before = [piece for i in ids.tolist() for piece in replaced.get(i, [i])]
        assert before == old.encode_batch([text])[0].tolist()
        assert new.decode(ids) == old.decode(before)
        assert library.encode(text, add_special_tokens=False).ids == ids.tolist()


def test_placeholders_of_sentencepiece_are_replaced_first():
    old = unigram()
    model = ModelProto.FromString(old.model)
    model.pieces[9].piece, model.pieces[9].type = "[unused0]", ModelProto.SentencePiece.USER_DEFINED
    old = type(old)(model.SerializeToString(), lowercase=True)
    new = extend(old, "2", [("▁kinase", 9), ("▁phospho", 3)])
    assert (new.tokens[9], new.tokens[700:]) == ("▁kinase", ["▁phospho"])
    assert extended_size(old, "2") == 701
    assert new.encode_batch(["kinase phospho"])[0].tolist() == [9, 700]
    assert 9 in old.encode_batch(["[unused0]"])[0] and 9 not in new.encode_batch(["[unused0]"])[0]


def test_a_word_inside_another_does_not_divide_it():
    old = unigram()
    words = ["▁phospho", "▁phosphokinase", "kinase"]
    new = extend(old, "3", [(word, 9) for word in words])
    assert new.word_pieces("▁phosphokinase") == [new.ids["▁phosphokinase"]]


def test_other_sentencepiece_models_are_refused():
    for options in (
        {"sentencepiece_type": "bpe"},
        {"special_tokens": tokenizers.CONVENTIONS["roberta"]},
    ):
        with pytest.raises(UserError, match=r"\(sentencepiece\) cannot get such tokens"):
            extended_size(unigram(**options), "3")


@pytest.mark.parametrize("make", [with_placeholders, byte_bpe, unigram])
def test_it_is_saved(make, tmp_path):
    counts = {byte_bpe: BPE_COUNTS, unigram: [("▁kinase", 9), ("▁phospho", 7), ("kinase", 4)]}
    new = extend(make(), "3", counts.get(make, COUNTS))
    new.save(tmp_path)
    assert tokenizers.load(tmp_path).fingerprint == new.fingerprint


def test_words_of_a_file(tmp_path):
    old, path = with_placeholders(), tmp_path / "words.txt"
    path.write_text("Feed\n\nthe\nbéd\nfeed\nadd\n")
    new = extend(old, str(path), [])
    # The words are those of the tokenizer, which is uncased; "the" is a token already.
    assert [new.tokens[7], new.tokens[13], *new.tokens[len(old.tokens) :]] == ["feed", "bed", "add"]
    assert extended_size(old, str(path)) == new.vocab_size
    path.write_text("Kinase\n\nthe\nkinase\nphospho\n")
    assert extend(unigram(), str(path), []).tokens[700:] == ["▁kinase", "▁phospho"]
    path.write_text("feed\nwell-bred\n")
    with pytest.raises(UserError, match=r"words.txt:2: 'well-bred' is not one word .* 'well - br"):
        extended_size(old, str(path))
    with pytest.raises(UserError, match=r"\(byte_bpe\) cannot get such tokens"):
        extended_size(byte_bpe(), str(path))


def test_what_cannot_be_added_is_refused():
    with pytest.raises(UserError, match="is 6, but the text has only 4 tokens .* set it to 4 or"):
        extend(with_placeholders(), "6", COUNTS)
    herbert = training.train(
        "bert_bpe", ["the"] * 7, vocab_size=20, special_tokens=tokenizers.CONVENTIONS["herbert"]
    )
    with pytest.raises(UserError, match="add_tokens is 3, but .*bert_bpe. cannot get such tokens"):
        extended_size(herbert, "3")
    with pytest.raises(UserError, match="set it to 0 or less"):
        extend(make_tokenizer("roberta"), "1", [("the", 7)])


def xlm_roberta_like():
    return unigram(special_tokens=tokenizers.CONVENTIONS["roberta"])


@pytest.mark.parametrize("make", [with_placeholders, byte_bpe, xlm_roberta_like])
def test_markers_are_found_in_texts(make, tmp_path):
    old = make()
    new = with_markers(old, ["[Q] ", "[D]", "[Q] "])
    first = old.vocab_size
    assert new.tokens[first:] == ["[Q] ", "[D]"]
    ids, marked = new.encode_batch(["the a", "[Q] the a"])
    assert marked.tolist() == [first, *ids]
    # As the library finds them.
    library = to_library(new)
    for text in ("[Q] the a", "[D]the a", "a [Q] b"):
        expected = library.encode(text, add_special_tokens=False).ids
        assert new.encode_batch([text])[0].tolist() == expected
    assert replaced_pieces(old, new) == dict.fromkeys((first, first + 1), range(first))
    new.save(tmp_path)
    assert tokenizers.load(tmp_path).fingerprint == new.fingerprint
    # What is one token already stays as it is.
    assert with_markers(new, ["[Q] ", "[D]"]) is new


def test_a_placeholder_that_is_a_marker_keeps_its_id():
    old = with_placeholders()
    new = with_markers(old, ["[unused7]", "[Q] "])
    assert new.encode_batch(["[unused7]the"])[0].tolist() == [13, old.ids["the"]]
    assert new.tokens[old.vocab_size :] == ["[Q] "]
