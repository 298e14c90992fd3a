"""Evaluation against sums that numpy computes over the same batches."""

import functools
import math

import jax
import numpy as np
import pytest
import scipy.stats
from rich.console import Console

from bert_jax.batches.evaluation_batches import EVALUATION_SEED, evaluation_batches
from bert_jax.batches.stream import StreamSpec
from bert_jax.objectives.objective import apply
from bert_jax.pretraining import evaluation
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.summary import results_table
from tests.batches.fakes import (
    CLS,
    MASK,
    NUM_SPECIALS,
    PAD,
    FakeStore,
    make_documents,
    make_tokenizer,
)
from tests.refusals import command
from tests.small import small_config

VOCAB_SIZE = 98
MAX_SEQUENCES = 45
ONE_LAYER = {"model.num_hidden_layers": 1}


@pytest.fixture(scope="module")
def store():
    documents = make_documents(num_documents=12)
    total = sum(int(np.sum(d)) for d in documents)
    tokens = np.random.default_rng(3).zipf(1.3, total) % (VOCAB_SIZE - NUM_SPECIALS) + NUM_SPECIALS
    return FakeStore(documents, tokens)


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(small_config(**ONE_LAYER))


@pytest.fixture(scope="module")
def params(trainer):
    """Random values, large enough that guesses are sometimes right."""
    rng = np.random.default_rng(20)
    return jax.tree.map(
        lambda x: (x + 0.5 * rng.standard_normal(x.shape)).astype(np.float32),
        trainer.init_state().params,
    )


@pytest.fixture(scope="module")
def counts(store):
    return np.bincount(store.tokens, minlength=VOCAB_SIZE)


def score(trainer, params, store, counts, batch_size=16, max_sequences=MAX_SEQUENCES, **kwargs):
    config = small_config()
    config.eval.update(batch_size=batch_size, max_sequences=max_sequences)
    return evaluation.evaluate(
        trainer,
        params,
        step=0,
        store=store,
        tokenizer=make_tokenizer(VOCAB_SIZE),
        token_counts={"": counts},
        config=config,
        **kwargs,
    )


def log_softmax(logits):
    logits = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def texts_between_masks(ids):
    """Returns the fake tokenizer's text before, between and after the masks of a row."""
    texts = [[]]
    for i in ids:
        if i == MASK:
            texts.append([])
        elif i not in (PAD, CLS):
            texts[-1].append(str(i))
    return [" ".join(words) for words in texts]


@pytest.fixture(scope="module")
def by_hand(trainer, params, store, counts):
    """Returns the same scores, computed one sequence at a time."""
    config = small_config()
    stage = trainer.stages[-1]
    spec = StreamSpec.of(
        config.data,
        max_seq_length=stage.max_seq_length,
        max_predictions_per_seq=stage.max_predictions_per_seq,
        batch_size=MAX_SEQUENCES,
        seed=EVALUATION_SEED,
        stage=0,
        masked_lm_prob=0.15,
        whole_word_masking=False,
        num_threads=1,
    )
    tokenizer = make_tokenizer(VOCAB_SIZE)
    (batch,) = evaluation_batches(store, tokenizer, spec, MAX_SEQUENCES)
    output = jax.jit(functools.partial(apply, trainer.model))(params, batch)
    # The rows that pad the vocabulary have no probability.
    log_probs = log_softmax(np.asarray(output["mlm"]))
    nsp_log_probs = log_softmax(np.asarray(output["nsp"]))
    unigram = np.log((counts + 1) / (counts + 1).sum())
    mlm, right, unigram_mlm, unigram_right, filled = [], [], [], [], []
    for row in range(MAX_SEQUENCES):
        ids, masks = batch["input_ids"][row], []
        for slot, weight in enumerate(batch["masked_lm_weights"][row]):
            if weight:
                token = batch["masked_lm_ids"][row, slot]
                mlm.append(-log_probs[row, slot, token])
                right.append(log_probs[row, slot].argmax() == token)
                unigram_mlm.append(-unigram[token])
                unigram_right.append(counts.argmax() == token)
                at, guess = batch["masked_lm_positions"][row, slot], log_probs[row, slot].argmax()
                if ids[at] == tokenizer.mask_id:
                    sure = pytest.approx(math.exp(log_probs[row, slot, guess]), rel=1e-4)
                    words = {"original": str(token), "guess": str(guess)}
                    masks.append(words | {"probability": sure})
        if masks:
            filled.append((row, {"texts": texts_between_masks(ids), "masks": masks}))
    labels = batch["next_sentence_labels"]
    return {
        "mlm_loss": np.mean(mlm),
        "mlm_accuracy": np.mean(right),
        "mlm_perplexity": math.exp(np.mean(mlm)),
        "nsp_loss": -nsp_log_probs[np.arange(MAX_SEQUENCES), labels].mean(),
        "nsp_accuracy": (nsp_log_probs.argmax(-1) == labels).mean(),
        "constant_nsp_loss": scipy.stats.entropy(np.bincount(labels)),
        "majority_nsp_accuracy": max(np.bincount(labels)) / MAX_SEQUENCES,
        "unigram_mlm_loss": np.mean(unigram_mlm),
        "unigram_mlm_accuracy": np.mean(unigram_right),
        "unigram_mlm_perplexity": math.exp(np.mean(unigram_mlm)),
        "num_sequences": MAX_SEQUENCES,
        "filled_texts": filled,
    }


# 45 sequences: batch sizes that give one batch, a last batch of 13, or single sequences.
@pytest.mark.parametrize("batch_size", [45, 16, 1])
def test_scores_match_those_computed_by_hand(batch_size, by_hand, trainer, params, store, counts):
    expected = dict(by_hand)
    assert 0 < expected["mlm_accuracy"] < 1 and 0 < expected["unigram_mlm_accuracy"] < 1
    results = score(trainer, params, store, counts, batch_size)
    assert set(results) == set(expected)
    # Four rows with a mask, of the first sixteen rows of the first batch.
    filled = [text for row, text in expected.pop("filled_texts") if row < min(batch_size, 16)]
    assert results["filled_texts"] == filled[:4] and filled
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=2e-5), name
    assert isinstance(results["num_sequences"], int)


def test_scores_all_sequences_or_up_to_a_limit(trainer, params, store, counts):
    everything = score(trainer, params, store, counts, max_sequences=0)["num_sequences"]
    assert everything > MAX_SEQUENCES
    # A batch has no more rows than there are.
    results = score(trainer, params, store, counts, batch_size=10**6, max_sequences=0)
    assert results["num_sequences"] == everything
    for limit in (16, 17, everything + 1):
        results = score(trainer, params, store, counts, max_sequences=limit)
        assert results["num_sequences"] == min(limit, everything)


def test_results_are_shown_beside_their_baselines(trainer, params, store, counts):
    results = score(trainer, params, store, counts)
    with (console := Console(width=100)).capture() as capture:
        metrics = trainer.objective.metrics
        console.print(results_table("Step 6", metrics, results))
    rows = [" ".join(line.strip("│┃ ").split()) for line in capture.get().splitlines()]
    loss, baseline = results["mlm_loss"], results["unigram_mlm_loss"]
    assert f"masked-LM loss (nats) │ {loss:.3f} │ {baseline:.3f}" in rows
    accuracy, majority = results["nsp_accuracy"], results["majority_nsp_accuracy"]
    assert f"next-sentence accuracy │ {accuracy:.1%} │ {majority:.1%}" in rows
    assert evaluation.progress_text(metrics, results) == (
        f"held out: masked-LM loss {loss:.3f} (unigram frequencies {baseline:.3f}), "
        f"masked-LM accuracy {results['mlm_accuracy']:.1%}, "
        f"next-sentence accuracy {accuracy:.1%}"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--format=lines", "--format has no effect without --data; leave it out"),
        ("--pooling=cls", "--pooling has no effect without --sts and --retrieval"),
        ("--sts=x --query_prompt=y", "--query_prompt has no effect without --retrieval"),
        ("--data=x --depth=5", "--depth has no effect without --retrieval; leave it out"),
        ("--sts=x --data=y", "--data has no effect with --sts and --retrieval"),
        ("--sts=x --retrieval=y", "--retrieval has no effect with --sts"),
        ("--sts=nowhere.tsv", "nowhere.tsv: No such file"),
        ("--retrieval=nowhere", "nowhere/corpus.jsonl: No such file or directory"),
        ("--data=x.tsv --max_sequences=9", "has no effect on the score of a fine-tuned model"),
    ],
)
def test_mistakes_in_the_flags(flags, words, tmp_path):
    (tmp_path / "config.json").write_text('{"task": "table"}')
    assert words in command("evaluate", f"--workdir={tmp_path}", *flags.split())
