"""Batches do not depend on hosts, threads or interruptions; evaluation is fixed."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from bert_jax.batches.evaluation_batches import evaluation_batches
from bert_jax.batches.rows.pairs import PairRows
from tests.batches.fakes import FakeStore
from tests.batches.small_stream import DOCUMENTS, PACKED, SPEC, STORE, TOKENIZER, stream


def equal(batch, other):
    return batch.keys() == other.keys() and all(
        batch[k].dtype == other[k].dtype and np.array_equal(batch[k], other[k]) for k in batch
    )


def unmasked(batch):
    """Returns `input_ids` before masking."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids


@functools.cache
def first_batches(is_packed):
    """Returns 70 batches, which are more than two epochs."""
    full = stream(**PACKED if is_packed else {})
    batches = list(full.batches(0, 70))
    assert full.position(69)["epoch"] >= 2
    return batches


@pytest.fixture
def uninterrupted():
    return first_batches(is_packed=False)


@pytest.mark.parametrize("shards", [(1, 2, 5), (4,)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_host_may_have_any_shards(is_packed, shards):
    rows = np.concatenate([np.arange(2 * shard, 2 * shard + 2) for shard in shards])
    ours = stream(shards=shards, num_shards=6, **PACKED if is_packed else {}).batches(0, 70)
    for full, part in zip(first_batches(is_packed), ours, strict=True):
        assert equal(part, {k: v[rows] for k, v in full.items()})


@pytest.mark.parametrize("is_packed", [False, True])
def test_examples_and_their_masks_do_not_depend_on_the_batch_size(is_packed):
    larger = list(stream(batch_size=21, **PACKED if is_packed else {}).batches(0, 40))
    one, other = (
        {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        for batches in (first_batches(is_packed), larger)
    )
    assert equal(one, other)


@pytest.mark.parametrize("is_packed", [False, True])
def test_resuming_at_every_step(is_packed):
    changes, uninterrupted = PACKED if is_packed else {}, first_batches(is_packed)
    iterated = stream(**changes)
    positions = []
    for step, _ in enumerate(iterated.batches(0, 70)):
        positions.append(iterated.position(step))  # as in a checkpoint
    forward = stream(**changes)
    for step in range(69, -1, -1):
        assert forward.position(step) == positions[step]
        assert iterated.position(step) == positions[step]
        assert json.loads(json.dumps(positions[step])) == positions[step]
    epochs = {p["epoch"] for p in positions}
    assert epochs >= {0, 1, 2} and len({p["window"] for p in positions}) > 3
    for step in range(0, 70, 23):
        count = min(4, 70 - step)
        resumed = stream(**changes).batches(step, count, positions[step])
        without = stream(**changes).batches(step, count)
        for full, a, b in zip(uninterrupted[step : step + count], resumed, without, strict=True):
            assert equal(full, a) and equal(full, b)
    # An earlier position works too.
    assert equal(next(stream(**changes).batches(60, 1, positions[33])), uninterrupted[60])


@pytest.mark.parametrize("is_packed", [False, True])
def test_resuming_does_not_plan_earlier_windows(is_packed, monkeypatch):
    changes = PACKED if is_packed else {}
    position = stream(**changes).position(50)
    assert position["epoch"] > 0 and position["first_example"] <= 600
    touched = []
    for name in ("plan", "count"):
        original = getattr(PairRows, name)

        def spy(self, epoch, window, original=original):
            touched.append((epoch, window))
            return original(self, epoch, window)

        monkeypatch.setattr(PairRows, name, spy)
    resumed = stream(**changes)
    next(resumed.batches(50, 1, position))
    here = position["epoch"], position["window"]
    assert touched and min(touched) == here
    assert len(set(touched)) <= 2
    touched.clear()
    assert resumed.position(50) == position and not touched  # The position is cached.


@pytest.mark.parametrize("change", [{"seed": 4}, {"stage": 1}])
def test_seeds_and_stages_differ(uninterrupted, change):
    batch = next(stream(**change).batches(0, 1))
    same_pairs = (unmasked(batch) == unmasked(uninterrupted[0])).all(axis=1)
    assert same_pairs.mean() < 0.5
    # The masks of the same rows differ too.
    examples = stream().examples
    ((_, plan),) = examples.spans(examples.find(0), 0, 8, 8, 1)
    one, other = stream().build(plan, 0), stream(**change).build(plan, 0)
    np.testing.assert_array_equal(unmasked(one), unmasked(other))
    assert not np.array_equal(one["masked_lm_positions"], other["masked_lm_positions"])


def test_a_corpus_smaller_than_a_batch():
    tiny = FakeStore([[5], [6, 7]])
    batches = list(stream(tiny, batch_size=64).batches(0, 4))
    again = stream(tiny, batch_size=64)
    position = again.position(3)
    assert position["epoch"] > 20
    assert equal(next(again.batches(3, 1, position)), batches[3])
    assert [len(b["input_ids"]) for b in batches] == [64] * 4


def test_only_the_parts_of_a_window_are_opened():
    many = FakeStore(DOCUMENTS * 8, cuts=range(1, 8 * len(DOCUMENTS)))
    many.tokens[:] = 5
    resumed = stream(many, shuffle_sentences=16)
    position = {"first_example": 480, "epoch": 1, "window": 7}
    many.opened.clear()
    next(resumed.batches(40, 1, position))
    windows = resumed.examples.rows.windows(1)
    assert set(many.opened) <= set(np.concatenate(windows[7:10]).tolist())


def evaluate(max_sequences=0, **changes):
    hosts = {k: changes.pop(k) for k in ("shards", "num_shards") if k in changes}
    spec = dataclasses.replace(SPEC, **changes)
    return list(evaluation_batches(STORE, TOKENIZER, spec, max_sequences, **hosts))


@pytest.mark.parametrize("max_sequences", [0, 31])
def test_evaluation_is_one_fixed_epoch(uninterrupted, max_sequences):
    batches = evaluate(max_sequences)
    for a, b in zip(batches, evaluate(max_sequences), strict=True):
        assert equal(a, b)
    examples = stream().examples
    epoch = sum(examples.rows.count(0, w) for w in range(len(examples.rows.windows(0))))
    total = min(max_sequences or epoch, epoch)
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    assert weights.dtype == np.float32
    assert len(batches) == -(-total // 12)
    assert (weights == (np.arange(len(weights)) < total)).all()
    for batch in batches:
        assert batch["input_ids"].shape == (12, 32)
        assert not batch["masked_lm_weights"][batch["example_weights"] == 0].any()
        assert batch["masked_lm_weights"][batch["example_weights"] == 1].sum(axis=1).min() >= 1
    # The rows are the first epoch of a training stream with the same seed and stage.
    plain = {k: v for k, v in batches[0].items() if k not in ("example_weights",)}
    if total >= 12:
        assert equal(plain, uninterrupted[0])


@pytest.mark.parametrize(
    ("values", "others"),
    [
        ({}, {"max_predictions_per_seq": 2}),
        (
            {"rows": "whole_sentences", "corruption": "denoising"},
            {"poisson_lambda": 9.0, "permute_sentence_ratio": 0.0},
        ),
    ],
)
def test_evaluation_does_not_depend_on_the_masks_of_training(values, others):
    changes = values | others | {"masked_lm_prob": 0.05, "mask_fractions": (1.0, 0.0, 0.0)}
    for batch, other in zip(evaluate(**values), evaluate(**changes), strict=True):
        assert equal(batch, other)


def test_evaluation_over_hosts_and_batch_sizes():
    full = evaluate(40)
    hosts = [evaluate(40, shards=(i,), num_shards=3) for i in range(3)]
    for batch, *parts in zip(full, *hosts, strict=True):
        assert equal(batch, {k: np.concatenate([p[k] for p in parts]) for k in batch})
    apart = evaluate(40, shards=(0, 2), num_shards=3)
    rows = np.r_[0:4, 8:12]
    for batch, part in zip(full, apart, strict=True):
        assert equal(part, {k: v[rows] for k, v in batch.items()})
    for size in (5, 8, 64):
        other = evaluate(40, batch_size=size)
        for name in full[0]:
            a, b = (np.concatenate([x[name] for x in batches])[:40] for batches in (full, other))
            assert np.array_equal(a, b)


IN_PARTS = FakeStore(DOCUMENTS, cuts=(4, 5, 19))
OF_TWO_SOURCES = FakeStore(DOCUMENTS, cuts=(15, 25), sources=("en", "en", "bg"))
VARIANTS = {
    "parts": {"store": IN_PARTS},
    "sources": {"store": OF_TWO_SOURCES, "source_weights": ("en=1,bg=1",)},
    "parts_roberta": {
        "store": IN_PARTS,
        "rows": "full_sentences",
        "corruption": "roberta",
    },
    "three_way": {"pair_labels": "three_way"},
    "segments": {"rows": "segments", "corruption": "none"},
    "denoising": {
        "store": IN_PARTS,
        "rows": "whole_sentences",
        "corruption": "denoising",
        "mask_fractions": (0.9, 0.0, 0.1),
    },
    "fitted_documents": {
        "store": IN_PARTS,
        "rows": "fitted_documents",
        "corruption": "modernbert",
        "max_pairs_per_row": 4,
    },
    "diffusion": {"store": IN_PARTS, "rows": "full_sentences", "corruption": "diffusion"},
    "packed_diffusion": {
        "rows": "fitted_documents",
        "corruption": "diffusion",
        "max_pairs_per_row": 4,
    },
    "roberta_words": {
        "rows": "doc_sentences",
        "corruption": "roberta",
        "whole_word_masking": True,
    },
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_variants_depend_neither_on_hosts_nor_on_interruptions(variant):
    full = stream(**variant)
    batches = list(full.batches(0, 40))
    position = full.position(33)
    assert position["epoch"] >= 1
    hosts = [stream(**variant, shards=(i,), num_shards=3).batches(0, 40) for i in range(3)]
    for batch, *parts in zip(batches, *hosts, strict=True):
        assert equal(batch, {k: np.concatenate([part[k] for part in parts]) for k in batch})
    resumed = stream(**variant, num_threads=4).batches(33, 7, position)
    for batch, again in zip(batches[33:], resumed, strict=True):
        assert equal(batch, again)


@pytest.mark.parametrize("variant", [PACKED, VARIANTS["denoising"]], ids=["packed", "denoising"])
def test_batches_are_the_same_without_tensorflow(variant, request):
    with_tensorflow = list(stream(**variant).batches(0, 40))
    request.getfixturevalue("without_tensorflow")
    for batch, full in zip(stream(**variant).batches(0, 40), with_tensorflow, strict=True):
        assert equal(batch, full)
