"""Long sentences: no row builder loses text, and rows of pairs follow BERT's rules."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax import load_config
from bert_jax.batches.rows import ROWS
from bert_jax.batches.rows.blocks import Blocks, divide_sentences
from bert_jax.batches.rows.pairs import PairRows
from bert_jax.batches.stream import Stream
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer
from tests.batches.fakes import FakeStore, make_documents, make_spec, make_tokenizer

LENGTH = 32
# test_answers.py tests rows of prompts with answers.
BUILDERS = sorted(ROWS.keys() - {"answers"})
# Their rows are cut as in the originals.
TRUNCATED = ("pairs", "halves")


def seen_tokens(name, documents, seed=0, epochs=1, **changes):
    """Returns how often some epochs have each token, int [T]; random segments count too."""
    store = FakeStore(documents, cuts=(len(documents) // 2,))
    values = {"rows": name, "corruption": "none", "seed": seed, "max_sentence_tokens": 128}
    spec = make_spec(LENGTH, **values | changes)
    rows = Stream(store, make_tokenizer(5 + store.num_tokens), spec).rows
    seen = []
    for epoch in range(epochs):
        for window in range(len(rows.windows(epoch))):
            plan = rows.plan(epoch, window)
            store.read.clear()
            batch = rows.assemble(plan)
            assert batch["attention_mask"].sum(axis=1).max() <= LENGTH
            seen += store.read
    return np.bincount(np.concatenate(seen), minlength=store.num_tokens)


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - set(TRUNCATED)))
@settings(max_examples=20)
@given(
    documents=st.lists(
        st.lists(st.integers(1, 200), min_size=1, max_size=12), min_size=4, max_size=8
    ),
    seed=st.integers(0, 2**32),
)
def test_an_epoch_has_every_token(name, documents, seed):
    seen = seen_tokens(name, documents, seed, short_seq_prob=0.5)
    assert seen.min() == seen.max() == 1


@pytest.mark.parametrize("name", TRUNCATED)
def test_ten_epochs_of_truncated_rows_have_nearly_every_token(name):
    """Without division, the ends of long sentences are out of reach."""
    rng = np.random.default_rng(0)
    documents = [rng.geometric(1 / 25, size) for size in rng.integers(1, 40, 60)]
    seen, without = (
        np.mean(seen_tokens(name, documents, epochs=10, max_sentence_tokens=most) > 0)
        for most in (128, 0)
    )
    assert seen > 0.98 and without < 0.9


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"fitted_documents"}))
def test_0_loses_the_ends_of_long_sentences_as_the_originals_do(name):
    assert seen_tokens(name, [[100, 5]] * 8, max_sentence_tokens=0).min() == 0


def test_no_residue_of_a_long_protein_is_lost():
    data = load_config("esm:8m").data
    seen = seen_tokens(data.rows, [[3000]] * 4, max_sentence_tokens=data.max_sentence_tokens)
    assert seen.min() == seen.max() == 1


def test_a_pair_of_one_long_sentence_has_its_parts_in_order():
    """As many pairs have a random B as of short sentences; without division, all have."""
    store = FakeStore([[3000]] * 8)
    for most, low, high in ((128, 0.4, 0.6), (0, 1, 1)):
        spec = make_spec(LENGTH, max_sentence_tokens=most, short_seq_prob=0.0)
        plan = PairRows(store, make_tokenizer(5 + store.num_tokens), spec).plan(0, 0)
        assert low <= plan.is_random_N.mean() <= high
        in_order = ~plan.is_random_N
        between = plan.b_start_N - plan.a_start_N - plan.a_length_N
        # The pair is cut to a row.
        assert (between >= 0)[in_order].all() and (between <= LENGTH)[in_order].all()


def test_short_sentences_are_read_as_before():
    documents = make_documents(seed=1)
    lengths_S = np.concatenate(documents)
    starts_S1 = np.append(0, np.cumsum(lengths_S))
    documents_D1 = np.append(0, np.cumsum([len(lengths) for lengths in documents]))
    most = int(lengths_S.max())
    for limit in (0, most):
        found = divide_sentences(limit, np.zeros_like, documents_D1, starts_S1)
        assert found[0] is documents_D1 and found[1] is starts_S1
    for limit in range(1, 12):
        quality = np.random.default_rng(limit).integers(0, 3, starts_S1[-1])
        parts_D1, parts_P1 = divide_sentences(limit, quality.take, documents_D1, starts_S1)
        lengths_P = np.diff(parts_P1)
        assert 1 <= lengths_P.min() and lengths_P.max() <= limit
        assert set(starts_S1) <= set(parts_P1)
        np.testing.assert_array_equal(parts_P1[parts_D1], starts_S1[documents_D1])


@pytest.mark.parametrize(
    ("limit", "starts"), [(8, [0, 5, 9, 15]), (5, [0, 4, 7, 12, 16]), (12, [0, 5, 13])]
)
def test_long_sentences_are_divided_between_words_and_better_between_clauses(limit, starts):
    """The best place within a quarter of the limit is one after a comma."""
    text = "as long as words go on , there are un ##break ##able ones and more of them to come here"
    words = text.split()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(words)]
    tokenizer = WordPieceTokenizer(vocabulary, lowercase=True, max_input_chars_per_word=100)
    store = FakeStore([[len(words)]] * 2, np.array([tokenizer.ids[word] for word in words * 2]))
    blocks = Blocks(store, 1024, max_sentence_tokens=limit, tokenizer=tokenizer)
    (block,) = blocks.read([0], [0])
    assert block.sentence_starts.tolist() == [*starts, *(20 + start for start in starts), 40]
