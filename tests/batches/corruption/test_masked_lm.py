"""Masks and the fractions of each replacement, against a plain transcription of the original."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base.parts import load_part
from bert_jax.batches.corruption import CORRUPTIONS, masked_lm
from bert_jax.batches.corruption.choose import num_to_predict
from bert_jax.batches.corruption.masked_lm import MaskedTokens
from bert_jax.batches.random_keys import draw_rows
from bert_jax.config.stage_keys import COIN_CORRUPTIONS, derived_predictions
from bert_jax.tokenizers import CONVENTIONS
from tests.batches.fakes import CLS, MASK, PAD, SEP, make_spec, make_tokenizer
from tests.tokenizers.test_tokenizers import sample_texts, train

KEY = np.array([7, 9], dtype=np.uint64)


def make_rows(num_rows, length, vocab_size, seed=0, full=False):
    """Returns rows `[CLS] A [SEP] B [SEP]` of random tokens, and their attention mask."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((num_rows, length), np.int32)
    used = np.zeros_like(ids)
    for row in range(num_rows):
        total = length - 3 if full else int(rng.integers(2, length - 2))
        a = int(rng.integers(1, total))
        text = rng.integers(5, vocab_size, total)
        ids[row, : total + 3] = [CLS, *text[:a], SEP, *text[a:], SEP]
        used[row, : total + 3] = 1
    return ids, used


def rules_for(vocab_size, *, whole=False, most=20, prob=0.15, fractions=(0.8, 0.1, 0.1)):
    tokenizer = make_tokenizer(vocab_size)
    spec = make_spec(
        max_predictions_per_seq=most,
        masked_lm_prob=prob,
        whole_word_masking=whole,
        mask_fractions=fractions,
    )
    return SimpleNamespace(
        corruption=MaskedTokens(tokenizer, spec),
        vocab_size=vocab_size,
        whole=whole,
        is_word_start_V=tokenizer.is_word_start_V,
    )


def mask_rows(ids, used, rules, key, first_example):
    batch = {"input_ids": ids, "attention_mask": used}
    return rules.corruption.corrupt(batch, key, first_example)


def original_choice(ids, order_of, is_word_start_V, prob, most):
    """The choice of tokens in create_masked_lm_predictions, with the groups in a given order.

    `order_of` maps the first column of a group to its position in the order. There is one change: a
    word never extends across a [SEP]. In the original it does if truncation has cut the word.
    """
    groups = []
    for i, token in enumerate(ids):
        if token in (CLS, SEP):
            continue
        after_special = ids[i - 1] in (CLS, SEP)
        if is_word_start_V is not None and not is_word_start_V[token] and not after_special:
            groups[-1].append(i)
        else:
            groups.append([i])
    groups.sort(key=lambda group: order_of[group[0]])
    number = min(most, max(1, int(round(len(ids) * prob))))
    chosen = []
    for group in groups:
        if len(chosen) >= number:
            break
        if len(chosen) + len(group) > number:
            continue
        chosen += group
    return sorted(chosen)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    length=st.sampled_from([8, 16, 33, 64, 128]),
    whole=st.booleans(),
    most=st.integers(1, 8),
    prob=st.sampled_from([0.05, 0.15, 0.4]),
)
def test_choice_matches_the_original(seed, length, whole, most, prob):
    vocab_size = 300
    ids, used = make_rows(6, length, vocab_size, seed)
    rules = rules_for(vocab_size, whole=whole, most=most, prob=prob)
    masked = mask_rows(ids, used, rules, KEY, seed)
    bits = draw_rows(KEY, seed, 6, length + 2 * most)
    column_bits = max(1, (length - 1).bit_length())
    for row in range(6):
        order = [(int(b) >> 1 >> column_bits << column_bits) + c for c, b in enumerate(bits[row])]
        real = ids[row, : used[row].sum()]
        expected = original_choice(
            real, order, rules.is_word_start_V if whole else None, prob, most
        )
        number = int(masked["masked_lm_weights"][row].sum())
        assert masked["masked_lm_positions"][row, :number].tolist() == expected


def test_the_rules_of_xlm():
    """Each real token has a coin of its own, as in `mask_out` of XLM's trainer.py."""
    ids, used = make_rows(4000, 64, 60, seed=4)
    spec = make_spec(max_predictions_per_seq=40, masked_lm_prob=0.15, whole_word_masking=False)
    batch = {"input_ids": ids, "attention_mask": used}
    masked = masked_lm.XLM(make_tokenizer(60), spec, None).corrupt(batch, KEY, 0)
    number, real = masked["masked_lm_weights"].sum(axis=1), used.sum(axis=1)
    # Binomial: the variance of a row's number is 0.15 * 0.85 of its length.
    deviations = (number - 0.15 * real) / np.sqrt(0.15 * 0.85 * real)
    assert abs(deviations.mean()) < 0.05 and abs(deviations.std() - 1) < 0.05
    is_chosen = np.zeros(ids.shape, bool)
    rows, slots = np.nonzero(masked["masked_lm_weights"])
    is_chosen[rows, masked["masked_lm_positions"][rows, slots]] = True
    for token in (CLS, SEP):
        assert abs(is_chosen[ids == token].mean() - 0.15) < 0.02
    assert not is_chosen[used == 0].any()
    # Neighbors are independent.
    both = used[:, 1:] > 0
    assert abs((is_chosen[:, 1:] & is_chosen[:, :-1])[both].mean() - 0.15**2) < 0.002
    few = make_spec(max_predictions_per_seq=3, masked_lm_prob=0.15, whole_word_masking=False)
    masked = masked_lm.XLM(make_tokenizer(60), few, None).corrupt(batch, KEY, 0)
    assert masked["masked_lm_weights"].sum(axis=1).max() == 3


@pytest.fixture(scope="module", params=[False, True], ids=["tokens", "words"])
def many(request):
    """Returns rows, attention masks, rules, and masked rows with over 10^5 predictions."""
    vocab_size = 60  # Small, so that random ids often equal the original ones.
    ids, used = make_rows(6000, 128, vocab_size, seed=2)
    ids2, used2 = make_rows(4000, 128, vocab_size, seed=3, full=True)
    ids, used = np.concatenate([ids, ids2]), np.concatenate([used, used2])
    rules = rules_for(vocab_size, whole=request.param)
    return ids, used, rules, mask_rows(ids, used, rules, KEY, 0)


def test_shapes_dtypes_and_invariants(many):
    ids, used, rules, masked = many
    positions, weights = masked["masked_lm_positions"], masked["masked_lm_weights"]
    number = weights.sum(axis=1).astype(int)
    quota = num_to_predict(used.sum(axis=1), 0.15, 20)
    assert ((weights == 0) | (weights == 1)).all() and (np.diff(weights, axis=1) <= 0).all()
    assert number.max() <= 20 and (number <= quota).all()
    if not rules.whole:
        assert (number == quota).all() and number.min() >= 1
    for row in range(0, len(ids), 7):
        n = number[row]
        assert (np.diff(positions[row, :n]) > 0).all()  # ascending, none twice
        assert (positions[row, n:] == 0).all() and (masked["masked_lm_ids"][row, n:] == 0).all()
    rows, slots = np.nonzero(weights)
    at = positions[rows, slots]
    true = masked["masked_lm_ids"][rows, slots]
    assert (true == ids[rows, at]).all() and used[rows, at].all()
    assert not np.isin(true, [PAD, CLS, SEP, MASK]).any()  # specials never chosen
    changed = masked["input_ids"] != ids
    chosen = np.zeros_like(changed)
    chosen[rows, at] = True
    assert not (changed & ~chosen).any()


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("name", ["masked_lm", "roberta", "spans", "ngrams", "distilbert"])
def test_masks_do_not_depend_on_the_split(name, whole_words):
    rules = load_part(name, CORRUPTIONS, "")
    # In short rows, a chosen token is often one column after the last one of the row before.
    ids, used = make_rows(400, 20, 300)
    whole_words = whole_words and name != "distilbert"
    spec = make_spec(max_predictions_per_seq=10, masked_lm_prob=0.3, whole_word_masking=whole_words)
    store = SimpleNamespace(token_counts=np.arange(300))
    corrupt = rules(make_tokenizer(300), spec, store).corrupt

    def masked(rows, first_example, key=KEY):
        return corrupt({"input_ids": ids[rows], "attention_mask": used[rows]}, key, first_example)

    whole = masked(slice(None), 1000)
    assert whole.keys() == {"input_ids", *rules.fields}
    parts = [masked(slice(row, row + 1), 1000 + row) for row in range(400)]
    for field, value in whole.items():
        assert np.array_equal(value, np.concatenate([part[field] for part in parts])), field
    for other in (masked(slice(None), 1001), masked(slice(None), 1000, KEY + KEY)):
        assert not np.array_equal(other["masked_lm_positions"], whole["masked_lm_positions"])


@pytest.mark.parametrize("fractions", [(1, 0, 0), (0.8, 0.2, 0), (0, 0.2, 0.8)])
def test_shares_of_the_ablations(fractions):
    """Table 8 of the paper; the choice of positions does not depend on the fractions."""
    ids, used = make_rows(3000, 64, 1000, full=True)
    masked = mask_rows(ids, used, rules_for(1000, fractions=fractions), KEY, 0)
    usual = mask_rows(ids, used, rules_for(1000), KEY, 0)
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        assert np.array_equal(masked[name], usual[name])
    row, slot = np.nonzero(masked["masked_lm_weights"])
    true = masked["masked_lm_ids"][row, slot]
    new = masked["input_ids"][row, masked["masked_lm_positions"][row, slot]]
    found = [(new == MASK).mean(), (new == true).mean()]
    # A random id equals a given id in 1 of 1,000 cases.
    expected = [fraction + fractions[2] / 1000 for fraction in fractions[:2]]
    assert np.abs(np.subtract(found, expected)).max() < 4 * 0.5 / np.sqrt(len(row))
    assert fractions[0] or (new == MASK).mean() < 0.002
    assert fractions[2] or ((new == MASK) | (new == true)).all()
    if fractions[2]:
        # Random ids are uniform over the vocabulary, special tokens included.
        seen = np.bincount(new[new != true], minlength=1000)
        error = seen.mean() ** 0.5
        assert np.abs(seen - seen.mean()).max() < 5 * error and seen[:5].min() > 0


@pytest.mark.parametrize("name", sorted(CORRUPTIONS.keys() - {"denoising", "diffusion", "none"}))
def test_held_out_rows_have_the_masks_of_bert_whatever_training_masks(name):
    ids, used = make_rows(200, 64, 60)
    store = SimpleNamespace(token_counts=np.arange(60))
    batch = {"input_ids": ids, "attention_mask": used}
    rules = load_part(name, CORRUPTIONS, "corruption")
    spec = rules.held_out(make_spec(masked_lm_prob=0.4, whole_word_masking=True))
    masked = spec.corruption(make_tokenizer(60), spec, store).corrupt(batch, KEY, 0)
    usual = make_spec(max_predictions_per_seq=10)
    expected = masked_lm.BERT(make_tokenizer(60), usual, store).corrupt(batch, KEY, 0)
    assert masked.keys() == {"input_ids", *rules.fields}
    for field, value in expected.items():
        assert np.array_equal(masked[field], value), field
    # 15 % of the tokens, rounded to the nearest number for each row.
    number = expected["masked_lm_weights"].sum(axis=1)
    assert np.array_equal(number, np.maximum(1, np.rint(0.15 * used.sum(axis=1))))


def test_rules_may_keep_their_masks_on_held_out_rows():
    rules = dataclasses.replace(masked_lm.ELECTRA, held_out_as_trained=True)
    spec = make_spec(masked_lm_prob=0.4)
    assert rules.held_out(spec) is spec


@pytest.mark.parametrize(("length", "vocab_size"), [(32, 900), (128, 4096)])
def test_derived_predictions_have_room_for_whole_words_of_real_text(vocab_size, length):
    """Words have 1.8 or 1.2 pieces. 15 % of them are chosen, with all of their pieces."""
    texts, rows = sample_texts(40), 30_000
    tokenizer = train("unigram", texts, vocab_size, False, special_tokens=CONVENTIONS["camembert"])
    text = np.concatenate(tokenizer.encode_batch(texts))
    starts = np.random.default_rng(0).integers(0, len(text) - length, rows)
    ids = text[starts[:, None] + np.arange(length)]
    ids[:, 0], ids[:, -1] = tokenizer.cls_id, tokenizer.sep_id
    most = derived_predictions(length, 0.15, "roberta", whole_word_masking=True)
    batch, numbers = {"input_ids": ids, "attention_mask": np.ones_like(ids)}, []
    for room in (most, length):
        spec = make_spec(max_predictions_per_seq=room, whole_word_masking=True)
        corrupted = masked_lm.ROBERTA(tokenizer, spec, None).corrupt(batch, KEY, 0)
        numbers.append(corrupted["masked_lm_weights"].sum(axis=1))
    cut = (numbers[1] > most).mean()
    assert cut < 1e-4
    # Four standard errors of the mean.
    error = numbers[0].std() / np.sqrt(rows)
    assert abs(numbers[0].mean() - 0.15 * length) < 4 * error


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5])
def test_derived_predictions_have_room_for_coins(rate):
    coins = [
        name for name in CORRUPTIONS if "coins" in vars(load_part(name, CORRUPTIONS, "")).values()
    ]
    assert sorted(coins) == sorted(COIN_CORRUPTIONS)
    length, rows = 64, 20_000
    most = derived_predictions(length, rate, "modernbert")

    def probability_above(number):
        terms = range(number + 1, length + 1)
        return sum(math.comb(length, k) * rate**k * (1 - rate) ** (length - k) for k in terms)

    assert probability_above(most) < 1e-6 <= probability_above(most - 1)
    ids, used = make_rows(rows, length, 60, full=True)
    spec = make_spec(max_predictions_per_seq=most, masked_lm_prob=rate)
    corrupt = masked_lm.MODERNBERT(make_tokenizer(60), spec, None).corrupt
    number = corrupt({"input_ids": ids, "attention_mask": used}, KEY, 0)["masked_lm_weights"].sum(1)
    # Four standard errors of the mean.
    error = np.sqrt(rate * (1 - rate) / (length * rows))
    assert abs(number.mean() / length - rate) < 4 * error and number.max() < most
