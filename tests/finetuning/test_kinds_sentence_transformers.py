"""Twenty steps of sparse and multi-vector embeddings beside sentence-transformers."""

import json
import string
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.commands.finetune import open_task_setup
from bert_jax.finetuning.batches import rows_of_step
from bert_jax.finetuning.run import make_run
from bert_jax.interop import formats
from bert_jax.interop.weights import flatten
from tests.finetuning.test_kinds import config, data  # noqa: F401
from tests.interop.small_bert import make_pretrained

torch = pytest.importorskip("torch")
modules = pytest.importorskip("sentence_transformers.base.modules")

pytestmark = [pytest.mark.outside, pytest.mark.slow]

DROPOUTS = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
COMMON = {f"model.{key}": value for key, value in DROPOUTS.items()} | {
    "embedding.mask_duplicates": False,
    "schedule.warmup_steps": 2.0,
    "schedule.peak_learning_rate": 1e-3,
    "train.gradient_accumulation_steps": 1,
    "train.num_epochs": 20 / 8,
}


@pytest.fixture
def bert(tmp_path):
    pretrained = make_pretrained(terms=("masked_lm",), hidden_size=24, num_hidden_layers=1)
    for name in pretrained.weights:
        pretrained.weights[name] *= 0.2
        pretrained.weights[name] += name.endswith("scale")
    formats.write(pretrained, tmp_path / "bert", "huggingface")
    return tmp_path / "bert"


def our_losses(given, directory):
    """Returns the run, the weights that it begins with, and the losses of its steps."""
    run = make_run(given, directory, open_task_setup(given))
    state, losses = run.first_state()[0], []
    weights = {
        name: np.array(x) for name, x in flatten(state.params, run.trainer.model_config).items()
    }
    for _, batch in run.batches(0):
        state, metrics = run.trainer.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    return weights, losses


def their_losses(model, loss, source, seed, labels_of, prompts=("", ""), before=lambda step: None):
    from transformers import get_linear_schedule_with_warmup

    rows = [json.loads(line) for line in (source / "train.jsonl").read_text().splitlines()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.0)
    schedule, losses = get_linear_schedule_with_warmup(optimizer, 2, 20), []
    for step in range(20):
        before(step)
        of_step = [rows[number] for number in rows_of_step(step, len(rows), 16, seed)]
        columns = [[row[name] for row in of_step] for name in ("query", "positive")]
        columns += zip(*(row["negative"] for row in of_step), strict=True)
        sides = [("query", prompts[0]), *[("document", prompts[1])] * 3]
        features = [
            model.preprocess(list(texts), prompt=prompt, task=task) | {"task": task}
            for texts, (task, prompt) in zip(columns, sides, strict=True)
        ]
        scores = torch.tensor([row["scores"] for row in of_step])
        value = loss(features, labels_of(scores))
        value = sum(value.values()) if isinstance(value, dict) else value
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("recipe", ["pairs", "distill"])
def test_splade(recipe, bert, data, tmp_path):  # noqa: F811
    library = pytest.importorskip("sentence_transformers.sparse_encoder")
    from sentence_transformers.sparse_encoder.callbacks import (
        SpladeRegularizerWeightSchedulerCallback as Callback,
    )
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    own = {"embedding.query_flops": 0.05, "embedding.document_flops": 0.03}
    given = config("sparse", bert, data, recipe, **COMMON | own)
    _, found = our_losses(given, tmp_path / "run")
    transformer = modules.Transformer(
        str(bert), transformer_task="fill-mask", config_kwargs=DROPOUTS, max_seq_length=16
    )
    theirs = library.SparseEncoder(modules=[transformer, SpladePooling("max")])
    names = {"pairs": "SparseMultipleNegativesRankingLoss", "distill": "SparseMarginMSELoss"}
    base = getattr(library.losses, names[recipe])(theirs)
    loss = library.losses.SpladeLoss(
        theirs, base, document_regularizer_weight=0.03, query_regularizer_weight=0.05
    )
    callback = Callback(loss)
    callback.on_train_begin(None, SimpleNamespace(max_steps=20), None)

    def before(step):
        callback.on_step_begin(None, SimpleNamespace(global_step=step), None)

    def margins(scores):
        return scores[:, :1] - scores[:, 1:] if recipe == "distill" else None

    expected = their_losses(theirs, loss, data, given.seed, margins, before=before)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert expected[-1] < 0.98 * expected[0]


@pytest.mark.parametrize(
    ("recipe", "expansion"), [("pairs", "masked"), ("pairs", "attended"), ("distill", "none")]
)
def test_colbert(recipe, expansion, bert, data, tmp_path):  # noqa: F811
    library = pytest.importorskip("sentence_transformers.multi_vector_encoder")
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder import losses as library_losses
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from transformers import AddedToken

    own = {"embedding.expansion": expansion}
    given = config("multi_vector", bert, data, recipe, **COMMON | own)
    weights, found = our_losses(given, tmp_path / "run")
    expansions = {"strategy": "fixed", "attend": expansion == "attended", "length": 8}
    transformer = modules.Transformer(
        str(bert),
        config_kwargs=DROPOUTS,
        query_length=8,
        document_length=16,
        query_expansion=None if expansion == "none" else expansions,
    )
    # Ours begins with the means of the table for the markers, and draws the projection.
    markers = [AddedToken(text, normalized=False) for text in ("[Q] ", "[D] ")]
    transformer.tokenizer.add_tokens(markers)
    transformer.model.resize_token_embeddings(len(transformer.tokenizer))
    table = transformer.model.get_input_embeddings().weight
    kernel = torch.tensor(weights["projection/kernel"])
    with torch.no_grad():
        table.copy_(torch.tensor(weights["bert/embeddings/word_embeddings"]))
    dense = Dense(
        24,
        8,
        bias=False,
        activation_function=torch.nn.Identity(),
        init_weight=kernel.T.contiguous(),
        module_input_name="token_embeddings",
        module_output_name="token_embeddings",
    )
    theirs = library.MultiVectorEncoder(
        modules=[
            transformer,
            dense,
            MultiVectorMask(skiplist_words=list(string.punctuation)),
            modules.Normalize(module_input_name="token_embeddings"),
        ]
    )
    names = {"pairs": "MultipleNegativesRankingLoss", "distill": "DistillKLDivLoss"}
    loss = getattr(library_losses, f"MultiVector{names[recipe]}")(theirs)
    labels_of = (lambda scores: scores) if recipe == "distill" else lambda scores: None
    prompts = "[Q] ", "[D] "
    expected = their_losses(theirs, loss, data, given.seed, labels_of, prompts)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert expected[-1] < 0.98 * expected[0]
