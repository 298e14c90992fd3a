"""Conversion of texts to token rows."""

from bert_jax.inference.encode_text import encode
from tests.interop.small_bert import make_tokenizer

TOKENIZER = make_tokenizer()


def tokens(row):
    return " ".join(TOKENIZER.id_to_token(i) for i in row.input_ids_L)


def test_one_sentence_and_two():
    one, two = encode(TOKENIZER, ["a b", ("a", "b c")], 40)
    assert (tokens(one), tokens(two)) == ("[CLS] a b [SEP]", "[CLS] a [SEP] b c [SEP]")
    assert one.num_first == len(one.input_ids_L) == 4
    assert (two.num_first, len(two.input_ids_L)) == (3, 6)


def test_texts_are_cut():
    single, pair = encode(TOKENIZER, ["a b c d e", ("a b c d e", "f g h")], 7)
    assert tokens(single) == "[CLS] a b c d e [SEP]"
    assert tokens(pair) == "[CLS] a b [SEP] f g [SEP]"
    assert (single.num_cut, pair.num_cut) == (0, 4)


def test_masks():
    (row,) = encode(TOKENIZER, ["a [MASK] b[MASK]"], 40, masks=True)
    assert tokens(row) == "[CLS] a [MASK] b [MASK] [SEP]"
    (row,) = encode(TOKENIZER, ["a [MASK]"], 40)
    assert TOKENIZER.mask_id not in row.input_ids_L
