"""Rows of sentences and pairs."""

import numpy as np

from bert_jax.tasks.token_rows import Example, ExampleRows
from tests.interop.small_bert import TOKENS, make_tokenizer

TOKENIZER = make_tokenizer()


def example(text, text_b=None, label=0):
    return Example("0", [(text, text_b)], label)


def test_a_sentence_and_a_pair():
    rows = ExampleRows([example("a b", label=1), example("c", "d e", label=2)], TOKENIZER, 8)
    batch = rows.take(np.array([1, 0]))
    texts = [" ".join(TOKENS[i] for i in row) for row in batch["input_ids"]]
    assert texts == ["[CLS] c [SEP] d e [SEP] [PAD] [PAD]", "[CLS] a b [SEP]" + 4 * " [PAD]"]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 0], [0] * 8]
    assert batch["attention_mask"].tolist() == [[1] * 6 + [0] * 2, [1] * 4 + [0] * 4]
    assert batch["labels"].tolist() == [2, 1]
    assert all(array.dtype == np.int32 for array in batch.values())
    # Not padded.
    assert [row.num_first for row in rows] == [4, 3]
    assert [len(row.input_ids_L) for row in rows] == [4, 6]


def test_numbers_and_unknown_labels():
    rows = ExampleRows(
        [example("a", label=2.5), example("b", label=None)], TOKENIZER, 8, np.float32
    )
    labels = rows.take(np.arange(2))["labels"]
    assert labels.dtype == np.float32 and labels[0] == 2.5 and np.isnan(labels[1])
    assert ExampleRows([example("b", label=None)], TOKENIZER, 8).labels_N.tolist() == [-1]


def test_a_text_without_tokens():
    rows = ExampleRows([example("\u200b", "\u200b"), example("\u200b")], TOKENIZER, 8)
    assert rows.take(np.arange(2))["attention_mask"].sum(1).tolist() == [3, 2]


def test_fraction_of_unknown_tokens():
    rows = ExampleRows([example("a b ж"), example("c", "ж")], TOKENIZER, 8)
    assert rows.unknown_fraction == 2 / 5
    assert ExampleRows([], TOKENIZER, 8).unknown_fraction == 0


def test_windows_share_a_label_and_their_mean_is_the_output():
    """Seven tokens in rows of five with two special tokens are three, two and two."""
    examples = [example("a b c d e f a", label=1), example("b", label=0)]
    rows = ExampleRows(examples, TOKENIZER, 5, in_windows=True)
    assert len(rows) == 4 and rows.ids == ["0", "0"] and not rows.is_cut_N.any()
    batch = rows.take(np.arange(4))
    assert batch["attention_mask"].sum(axis=1).tolist() == [5, 4, 4, 3]
    assert batch["labels"].tolist() == [1, 1, 1, 0]
    (ids,) = TOKENIZER.encode_batch(["a b c d e f a"])
    assert [*batch["input_ids"][0, 1:4], *batch["input_ids"][1, 1:3]] == [*ids[:5]]
    logits = np.array([[3.0, 0], [0, 3], [0, 3], [5, 1]])
    assert rows.of_examples({"logits": logits})["logits"].tolist() == [[1, 2], [5, 1]]
