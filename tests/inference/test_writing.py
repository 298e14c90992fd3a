"""Text that is written by filling masks, against a plain loop over `fill_mask`."""

import itertools
import math

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.inference import writing
from bert_jax.inference.bert import Bert
from bert_jax.inference.filling import guess_masks
from tests.interop import small_bert
from tests.interop.small_bert import TOKENS

PROMPT = "a b c"


@pytest.fixture(scope="module")
def bert():
    return Bert(small_bert.make_pretrained(num_hidden_layers=2))


def may_write(token):
    return not token.startswith("[") or token == "[SEP]"


def guesses(bert, ids):
    """Returns the probability of each token that may be written, at each mask of a row."""
    (row,) = bert.tokenize(["a"], None)
    row = row._replace(input_ids_L=np.array(ids, np.int32), num_first=len(ids))
    (found,) = guess_masks(bert, [row], len(TOKENS))
    probabilities = {}
    for at, of_mask in found.items():
        kept = {x.token: x.probability for x in of_mask if may_write(x.token)}
        total = sum(kept.values())
        probabilities[at] = {token: p / total for token, p in kept.items()}
    return probabilities


@pytest.mark.parametrize(("length", "steps", "block"), [(9, 4, 0), (8, 5, 3), (5, 1, 0)])
def test_the_likeliest_text_against_a_loop(bert, length, steps, block):
    tokenizer = bert.tokenizer
    (row,) = bert.tokenize([PROMPT + " [MASK]" * length], None, masks=True)
    ids, history = row.input_ids_L.tolist(), []
    first = ids.index(tokenizer.mask_id)
    blocks = math.ceil(length / (block or length))
    for step in range(steps):
        now = step * blocks // steps
        left = math.ceil((now + 1) * steps / blocks) - step
        best = {at: max(p.items(), key=lambda x: x[1]) for at, p in guesses(bert, ids).items()}
        best = {at: x for at, x in best.items() if (at - first) // (block or length) == now}
        for at in sorted(best, key=lambda at: -best[at][1])[: math.ceil(len(best) / left)]:
            ids[at] = TOKENS.index(best[at][0])
        history.append([i for i in ids if i not in (tokenizer.cls_id, tokenizer.sep_id)])
    options = {"length": length, "steps": steps, "block": block, "temperature": 0}
    written = bert.write(PROMPT, **options)
    assert written.history == [tokenizer.decode(x).replace("[MASK]", "_") for x in history]
    assert written.text == written.history[-1] and "_" not in written.text
    # Without a temperature, the seed has no effect if the order is that of the probabilities.
    assert bert.write(PROMPT, **options, seed=5) == written


@pytest.mark.parametrize(("options", "power"), [({}, 1), ({"temperature": 0.5}, 2)])
def test_samples_have_the_probabilities_of_the_model(bert, options, power):
    (row,) = bert.tokenize(["a [MASK] c"], None, masks=True)
    ((_, found),) = guesses(bert, row.input_ids_L.tolist()).items()
    powers = {token: p**power for token, p in found.items()}
    number = 4000
    texts = [x.text for x in bert.write("a [MASK] c", length=1, samples=number, **options)]
    decode, ids = bert.tokenizer.decode, row.input_ids_L.tolist()[1:-1]
    for token, value in powers.items():
        own = decode([i for i in [ids[0], TOKENS.index(token), ids[2]] if TOKENS[i] != "[SEP]"])
        p = value / sum(powers.values())
        error = math.sqrt(number * p * (1 - p))
        assert abs(texts.count(own) - number * p) < 4.5 * error + 1


@pytest.mark.parametrize("order", ["confident", "random"])
def test_weights_that_give_nan_are_refused(order):
    pretrained = small_bert.make_pretrained(num_hidden_layers=2)
    pretrained.weights["bert/encoder/layer_1/output/bias"][3] = np.nan
    with pytest.raises(UserError, match="computes NaN: its weights are damaged"):
        Bert(pretrained).write(PROMPT, length=3, steps=2, order=order)


@pytest.mark.parametrize("order", ["confident", "random"])
def test_texts_depend_on_the_seed_and_not_on_other_texts(bert, order):
    prompts = [PROMPT, "j i", "the [MASK] a [MASK]", ("a b", "")]
    options = {"length": 6, "steps": 3, "order": order, "samples": 3, "temperature": 30.0}
    found = bert.write(prompts, **options)
    for prompt, samples in zip(prompts, found, strict=True):
        alone = bert.write([prompt], **options)[0]
        assert alone == samples and len({x.text for x in samples}) == 3
        assert bert.write([prompt], **options, seed=1)[0] != samples
    # A part of each text is open until the last step.
    assert all(len(x.history) == 3 and "_" in x.history[1] for x in itertools.chain(*found[:3]))
    assert found[0][0].text.startswith(PROMPT)


def test_orders_differ_and_a_program_serves_all_seeds(bert):
    options = {"length": 8, "steps": 4, "temperature": 0}
    confident = bert.write(PROMPT, **options)
    compiled = writing.filled._cache_size()
    assert confident == bert.write(PROMPT, **options, seed=3)
    bert.write("b a c", **options | {"temperature": 0.7}, seed=4)
    assert writing.filled._cache_size() == compiled
    found = [bert.write(PROMPT, **options, order="random", seed=seed) for seed in range(4)]
    assert len({tuple(written.history) for written in found}) > 1


def test_an_answer_ends_at_its_first_separator(bert):
    texts = bert.write("a b", "c", length=12, samples=60, temperature=50.0)
    assert all(x.text.startswith("c") and "[SEP]" not in x.text for x in texts)
    lengths = {len(bert.tokenizer.encode_batch([x.text])[0]) for x in texts}
    assert len(lengths) > 2 and max(lengths) <= 13


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length is 0; it must be at least 1"),
        ({"temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
        ({"order": "left"}, "order is 'left'; it must be confident or random"),
        ({"length": 12, "steps": 3, "block": 3}, "steps is 3; 4 blocks of 3 tokens need as many"),
        ({"length": 90}, "a text has 95 tokens with what is to be written; .* takes up to 40"),
    ],
)
def test_refusals(bert, options, message):
    with pytest.raises(UserError, match=message):
        bert.write(PROMPT, **options)
