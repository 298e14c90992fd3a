"""Rows of prompts with answers."""

import dataclasses

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.batches.rows.answers import AnswerRows
from bert_jax.tokenizers.sequence import SequenceTemplate
from tests.batches.fakes import CLS, SEP, FakeStore, make_spec, make_tokenizer

LENGTH = 24
# The lengths of prompts and answers; 21 tokens have room.
DOCUMENTS = [(3, 5), (1, 1), (10, 11), (30, 4), (4, 30), (40, 50), (12, 12)]
KEPT = [(3, 5), (1, 1), (10, 11), (17, 4), (4, 17), (11, 10), (11, 10)]


def batch_of(documents, **template):
    store = FakeStore(documents)
    tokenizer = make_tokenizer(5 + store.num_tokens)
    tokenizer.template = dataclasses.replace(tokenizer.template, **template)
    # Long sentences stay whole, whatever the option says.
    rows = AnswerRows(store, tokenizer, make_spec(LENGTH, max_sentence_tokens=8))
    return store, rows.assemble(rows.plan(0, 0))


@pytest.mark.parametrize("segments", [1, 2])
def test_rows_are_filled_with_sep_and_cut_fairly(segments):
    store, batch = batch_of(DOCUMENTS, num_segments=segments)
    starts, expected = store.sentence_starts, {}
    for d, (kept, (prompt, answer)) in enumerate(zip(KEPT, DOCUMENTS, strict=True)):
        # A prompt that is too long loses its first tokens.
        first = 5 + starts[2 * d] + max(0, prompt - kept[0])
        second = 5 + starts[2 * d + 1]
        row = [CLS, *range(first, first + kept[0]), SEP, *range(second, second + kept[1])]
        is_answer = [0] * (kept[0] + 2) + [1] * (LENGTH - kept[0] - 2)
        expected[tuple(row + [SEP] * (LENGTH - len(row)))] = is_answer
        assert sum(kept) <= LENGTH - 3 and kept[1] <= answer
    found = {
        tuple(ids.tolist()): mask.tolist()
        for ids, mask in zip(batch["input_ids"], batch["is_answer"], strict=True)
    }
    assert found == expected
    assert batch["attention_mask"].all()
    np.testing.assert_array_equal(batch["token_type_ids"], batch["is_answer"] * (segments == 2))
    assert {values.dtype for values in batch.values()} == {np.dtype("int32")}


def test_roberta_has_two_separators_before_the_answer():
    template = SequenceTemplate((CLS,), (SEP, SEP), (SEP,), 1)
    _, batch = batch_of([(3, 5)] * 2, **dataclasses.asdict(template))
    ids = batch["input_ids"][0]
    assert (ids[4:6] == SEP).all() and batch["is_answer"][0].tolist() == [0] * 6 + [1] * 18


def test_other_documents_are_refused():
    with pytest.raises(UserError, match="text_field=prompt,answer"):
        batch_of([(3, 5), (3, 5, 2)])
