"""Sentences and pairs as rows of ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.errors import UserError
from bert_jax.tasks.sentence_rows import BadRows, Example, SentenceRows, truncated_pair
from tests.interop.small_bert import TOKENS, make_tokenizer

TOKENIZER = make_tokenizer()


def example(text, text_b=None, label=0):
    return Example("a:1", text, text_b, label, "0")


def tokens(row):
    return [TOKENS[i] for i in row]


def test_a_sentence_and_a_pair_and_what_pads_them():
    rows = SentenceRows([example("a b", label=1), example("c", "d e", label=2)], TOKENIZER, 8)
    batch = rows.take(np.array([1, 0]))
    assert tokens(batch["input_ids"][0]) == "[CLS] c [SEP] d e [SEP] [PAD] [PAD]".split()
    assert batch["token_type_ids"][0].tolist() == [0, 0, 0, 1, 1, 1, 0, 0]
    assert batch["attention_mask"][0].tolist() == [1] * 6 + [0] * 2
    assert tokens(batch["input_ids"][1]) == "[CLS] a b [SEP] [PAD] [PAD] [PAD] [PAD]".split()
    assert batch["token_type_ids"][1].tolist() == [0] * 8
    assert batch["labels"].tolist() == [2, 1]
    assert all(array.dtype == np.int32 for array in batch.values())


def test_what_is_too_long_is_cut():
    rows = SentenceRows([example("a b c d e f g"), example("a b c d e", "f g h")], TOKENIZER, 7)
    single, pair = rows.take(np.arange(2))["input_ids"]
    assert tokens(single) == "[CLS] a b c d e [SEP]".split()
    # The longer one loses its last until both are as long; then the second is cut.
    assert tokens(pair) == "[CLS] a b [SEP] f g [SEP]".split()


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_truncation_is_the_originals(len_a, len_b, length):
    """Its loop, as run_classifier.py describes it: the longer one's last token goes."""
    a, b = list(range(len_a)), list(range(100, 100 + len_b))
    ours = [x.tolist() for x in truncated_pair(np.array(a, int), np.array(b, int), length)]
    while len(a) + len(b) > length:
        (a if len(a) > len(b) else b).pop()
    assert ours == [a, b]


def test_numbers_and_unknown_labels():
    rows = SentenceRows(
        [example("a", label=2.5), example("b", label=None)], TOKENIZER, 8, np.float32
    )
    labels = rows.take(np.arange(2))["labels"]
    assert labels.dtype == np.float32 and labels[0] == 2.5 and np.isnan(labels[1])
    assert SentenceRows([example("b", label=None)], TOKENIZER, 8).labels_N.tolist() == [-1]


def test_a_text_without_tokens_is_harmless():
    rows = SentenceRows([example("\u200b", "\u200b"), example("\u200b")], TOKENIZER, 8)
    assert rows.take(np.arange(2))["attention_mask"].sum(1).tolist() == [3, 2]


def test_bad_rows_are_refused_or_counted():
    with pytest.raises(UserError, match=r"f:3: it is wrong \(--config.data.bad_rows=skip"):
        BadRows(skip=False).bad("wrong", "f:3", "it is wrong")
    bad_rows = BadRows(skip=True)
    bad_rows.bad("wrong", "f:3", "it is wrong")
    assert bad_rows.dropped == {"wrong": 1}
    with pytest.raises(UserError, match="f:3: it is wrong$"):
        bad_rows.bad("wrong", "f:3", "it is wrong", must_stay=True)
