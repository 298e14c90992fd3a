"""Texts to token rows."""

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.encode_text import encode
from tests.interop.small_bert import make_tokenizer

TOKENIZER = make_tokenizer()
CLS, SEP, MASK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.mask_id


def ids(text):
    return [TOKENIZER.tokens.index(token) for token in text.split()]


def test_one_sentence_and_two():
    one, two = encode(TOKENIZER, ["a b", ("a", "b c")], 40)
    assert one.input_ids_L.tolist() == [CLS, *ids("a b"), SEP]
    assert two.input_ids_L.tolist() == [CLS, *ids("a"), SEP, *ids("b c"), SEP]
    assert one.token_type_ids_L.tolist() == [0, 0, 0, 0]
    assert two.token_type_ids_L.tolist() == [0, 0, 0, 1, 1, 1]
    assert (one.num_cut, two.num_cut) == (0, 0)


def test_texts_are_cut():
    single, pair = encode(TOKENIZER, ["a b c d e", ("a b c d e", "f g h")], 7)
    assert single.input_ids_L.tolist() == [CLS, *ids("a b c d e"), SEP]
    assert pair.input_ids_L.tolist() == [CLS, *ids("a b"), SEP, *ids("f g"), SEP]
    assert (single.num_cut, pair.num_cut) == (0, 4)


def test_masks():
    (row,) = encode(TOKENIZER, ["a [MASK] b[MASK]"], 40, masks=True)
    assert row.input_ids_L.tolist() == [CLS, *ids("a"), MASK, *ids("b"), MASK, SEP]
    (row,) = encode(TOKENIZER, ["a [MASK]"], 40)
    assert MASK not in row.input_ids_L


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a", " \n"], "text 2 of 2 is without a token"),
        ([("a", "")], "the text has a sentence without a token"),
        (["\ud800"], "lone surrogate"),
        ([None], "the text is not a text but a NoneType"),
        (["a", ["a", "b"]], "text 2 of 2 is not a text but a list; a pair of texts is a tuple"),
        ([("a", "b", "c")], "a tuple of 3; a pair has two"),
        ([("a",)], "a tuple of 1; a pair has two"),
    ],
)
def test_values_that_are_not_texts(texts, words):
    with pytest.raises(UserError, match=words):
        encode(TOKENIZER, texts, 40)
