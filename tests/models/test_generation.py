"""Greedy and beam search against `generate` of transformers, on tables of logits.

tests/golden/record_generation.py records what transformers finds.
"""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.generation import Search, generate
from bert_jax.models.heads import NO_PROBABILITY
from tests.golden.inputs import read_golden

GOLDEN = read_golden("generation")
SEARCHES = json.loads(str(GOLDEN["searches"]))
LOGITS = GOLDEN["logits"]
ROWS, LENGTH = LOGITS.shape[:2]
IDS = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}


@partial(jax.jit, static_argnums=0)
def searched(search, logits_BxTxVxV):
    """Searches in tables of logits; there is no cache."""
    # Two more ids pad the vocabulary, as in the models.
    padding = [(0, 0)] * 3 + [(0, 2)]
    logits_BxTxVxW = jnp.pad(logits_BxTxVxV, padding, constant_values=NO_PROBABILITY)
    rows = len(logits_BxTxVxV)

    def step(cache, ids_BxK, position):
        return logits_BxTxVxW[jnp.arange(rows)[:, None], position, ids_BxK], cache

    return generate(search, step, {}, jnp.ones(rows, bool))


def search_of(settings):
    return Search(**IDS | {"max_new_tokens": LENGTH} | settings)


@pytest.mark.parametrize("number", range(len(SEARCHES)), ids=lambda i: json.dumps(SEARCHES[i]))
def test_tokens_are_those_of_transformers(number):
    found = searched(search_of(SEARCHES[number]), LOGITS)
    np.testing.assert_array_equal(found, GOLDEN[f"tokens/{number}"])


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_row_does_not_depend_on_the_other_rows_of_its_batch(num_beams):
    search = search_of({"num_beams": num_beams, "length_penalty": 2.0})
    together = searched(search, LOGITS)
    for row in range(ROWS):
        np.testing.assert_array_equal(searched(search, LOGITS[row : row + 1])[0], together[row])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_cache_follows_its_beam(num_beams):
    """The logits depend on all tokens, through the cache; without one they are the same."""
    rng = np.random.default_rng(0)
    weights_VxV = jnp.asarray(rng.normal(size=(11, 11)) * 2, jnp.float32)
    search = search_of({"num_beams": num_beams, "min_length": LENGTH})

    def cached(cache, ids_BxK, position):
        cache = cache * 0.7 + weights_VxV[ids_BxK]
        return cache, cache

    found_BxT = generate(search, cached, jnp.zeros((2, num_beams, 11)), jnp.ones(2, bool))

    def logits_after(ids):
        state = np.zeros(11, np.float32)
        for token in ids:
            state = state * np.float32(0.7) + np.asarray(weights_VxV)[token]
        return state

    # An exhaustive beam search, in which every beam keeps its own tokens.
    beams = [(0.0, [2])]
    for position in range(LENGTH):
        candidates = []
        for score, ids in beams:
            log_probs = jax.nn.log_softmax(logits_after(ids))
            for token, log_prob in enumerate(np.asarray(log_probs)):
                if token != 2 or position + 1 >= LENGTH:
                    candidates.append((score + log_prob, [*ids, token]))
        beams = sorted(candidates, key=lambda beam: -beam[0])[:num_beams]
    assert found_BxT.tolist() == [beams[0][1][1:]] * 2
