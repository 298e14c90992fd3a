"""DistilBERT's masks against the original's; see benchmarks/golden/distilbert_masks.py."""

from types import SimpleNamespace

import numpy as np

from benchmarks.golden import distilbert_masks as original
from benchmarks.golden.distilbert_masks import DRAWS, LENGTH, statistics
from bert_jax.batches.corruption.masked_lm import DISTILBERT
from tests.batches.fakes import make_spec
from tests.golden.inputs import read_json


def draws():
    tokenizer = SimpleNamespace(
        vocab_size=original.VOCABULARY,
        pad_id=original.PAD,
        unk_id=original.UNK,
        cls_id=original.CLS,
        sep_id=original.SEP,
        mask_id=original.MASK,
        begins_word=lambda ids: np.ones(ids.shape, bool),
    )
    spec = make_spec(max_predictions_per_seq=20)
    store = SimpleNamespace(token_counts=original.token_counts())
    corruption = DISTILBERT(tokenizer, spec, store)
    ids_BxL, lengths_B = original.rows()
    mask_BxL = (np.arange(LENGTH) < lengths_B[:, None]).astype(np.int32)
    batch, key = {"input_ids": ids_BxL, "attention_mask": mask_BxL}, np.array([1, 2], np.uint64)
    found = []
    for i in range(DRAWS):
        masked = corruption.corrupt(batch, key, i * len(ids_BxL))
        chosen_BxL = np.zeros(ids_BxL.shape, bool)
        row_B, slot_B = np.nonzero(masked["masked_lm_weights"])
        chosen_BxL[row_B, masked["masked_lm_positions"][row_B, slot_B]] = True
        found.append((masked["input_ids"], chosen_BxL))
    return statistics(found)


def test_rare_tokens_are_chosen_as_often_as_in_the_original():
    ours, theirs = draws(), read_json("distilbert_masks.json")
    # The original rounds up, once per batch.
    np.testing.assert_allclose(ours["chosen"], theirs["chosen"], rtol=4e-3)
    assert ours["specials"] == theirs["specials"] == 0
    np.testing.assert_allclose(ours["by_class"], theirs["by_class"], rtol=0.05)
    for kind, fraction in theirs["became"].items():
        np.testing.assert_allclose(ours["became"][kind], fraction, atol=0.005)
    # The original draws from the whole batch: rows of rare tokens lose more of them.
    assert ours["row_deviation"] < 0.02 < 0.06 < theirs["row_deviation"]
