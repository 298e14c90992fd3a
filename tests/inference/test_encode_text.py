"""Text to tokens, and what is cut off."""

import pytest

from bert_jax.errors import UserError
from bert_jax.inference.encode_text import encode
from tests.interop.small_bert import make_tokenizer

TOKENIZER = make_tokenizer()
CLS, SEP, MASK = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.mask_id


def ids(text):
    return [TOKENIZER.tokens.index(token) for token in text.split()]


def original_truncation(first, second, room):
    """As _truncate_seq_pair in the original: a token at a time, from the longer side."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


def test_one_sentence_and_two():
    one, two = encode(TOKENIZER, ["a b", ("a", "b c")], 40)
    assert one.input_ids_L.tolist() == [CLS, *ids("a b"), SEP]
    assert two.input_ids_L.tolist() == [CLS, *ids("a"), SEP, *ids("b c"), SEP]
    assert one.token_type_ids_L.tolist() == [0, 0, 0, 0]
    assert two.token_type_ids_L.tolist() == [0, 0, 0, 1, 1, 1]
    assert (one.num_cut, two.num_cut) == (0, 0)


@pytest.mark.parametrize("room", range(2, 14))
@pytest.mark.parametrize("lengths", [(9, 3), (3, 9), (6, 6), (7, 6), (1, 9)])
def test_pairs_are_cut_as_the_original_cuts_them(lengths, room):
    texts = [" ".join("abcdefghij"[:n]) for n in lengths]
    (row,) = encode(TOKENIZER, [tuple(texts)], room + 3)
    first, second = original_truncation(*map(ids, texts), room)
    assert row.input_ids_L.tolist() == [CLS, *first, SEP, *second, SEP]
    assert row.num_first == len(first) + 2
    assert row.num_cut == sum(lengths) - len(first) - len(second)


def test_one_sentence_is_cut_at_its_end():
    (row,) = encode(TOKENIZER, ["a b c d e"], 5)
    assert row.input_ids_L.tolist() == [CLS, *ids("a b c"), SEP]
    assert row.num_cut == 2


def test_a_mask_is_one_where_it_is_asked_for():
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
        ([None], "the text is no text but a NoneType"),
        (["a", ["a", "b"]], "text 2 of 2 is no text but a list; a pair of texts is a tuple"),
        ([("a", "b", "c")], "a tuple of 3; a pair has two"),
        ([("a",)], "a tuple of 1; a pair has two"),
    ],
)
def test_texts_that_say_nothing(texts, words):
    with pytest.raises(UserError, match=words):
        encode(TOKENIZER, texts, 40)
