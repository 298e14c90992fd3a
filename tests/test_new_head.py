"""A head and a task from outside the package: a score from 0 to 1 for a query and a document.

Nothing in the package is changed for them.
"""

import inspect
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import bert_jax
from bert_jax.base import parts
from bert_jax.base.errors import UserError
from bert_jax.commands.score_file import score_file
from bert_jax.config import finetune_config
from bert_jax.convert import convert
from bert_jax.heads import Head
from bert_jax.heads.verb import Verb, value_of
from bert_jax.objectives.task_losses import TaskLoss
from bert_jax.tasks.example_task import SentenceTask
from bert_jax.tasks.table import FILE_NAMES
from tests import runs
from tests.finetuning.small import write_bert

SELF = "tests.test_new_head"


class Relevance(TaskLoss):
    """Binary cross-entropy of `labels`, float32 [B], from 0 to 1, for logits [B, 1]."""

    averaged = ("loss",)
    progress = {}

    def totals(self, batch):
        return batch["labels"].shape[0]

    def sums(self, outputs, batch):
        logits_B, labels_B = outputs["logits"][:, 0], batch["labels"]
        return {"loss": jnp.sum(jax.nn.softplus(logits_B) - labels_B * logits_B)}


def rank(bert, query, documents):
    """Ranks documents for a query, the best first: pairs of a document and its score."""
    outputs = bert.outputs(bert.rows([(query, document) for document in documents]))
    scores = [float(expit(logits_1x1[0, 0])) for logits_1x1 in outputs]
    return sorted(zip(documents, scores, strict=True), key=lambda scored: -scored[1])


def _predict(bert, items):
    asked = ((value_of(x, "query"), value_of(x, "documents", list | tuple)) for x in items)
    return [{"ranking": dict(rank(bert, *each))} for each in asked]


HEAD = Head(
    model="bert_jax.models.task_models:BertForSequenceClassification",
    loss=f"{SELF}:Relevance",
    num_outputs=1,
    transformers_class="SequenceClassification",
    methods={"rank": rank},
    verb=Verb(
        "rank",
        _predict,
        inspect.signature(lambda query, *documents: None),
        example=("'Where do fish live?'", "'in trees'", "'in water'"),
    ),
)


class PairTask(SentenceTask):
    """Rows of a query, a document and its relevance."""

    head = f"{SELF}:HEAD"
    metric = "pearson"
    file_names = FILE_NAMES
    text_columns = ("query", "document")
    label_columns = ("relevance",)
    limits = (0, 1)

    def write_predictions(self, rows, outputs, path):
        np.savetxt(path, outputs["logits"][:, 0])

    def predictions_name(self, split):
        return f"{split}.txt"


def get_config(arg=""):
    """Returns the config of the task; this file is passed as --config."""
    c = finetune_config(f"{SELF}:PairTask")
    c.train.batch_size, c.train.num_epochs, c.data.max_seq_length = 8, 1.0, 24
    return c


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the work directory and the output of a finished run of the command."""
    directory, rng = tmp_path_factory.mktemp("head"), np.random.default_rng(0)
    write_bert(directory / "bert")
    words = "the man a dog cat ran so here".split()
    lines = [
        f"{' '.join(rng.choice(words, 3))},{' '.join(rng.choice(words, 5))},{rng.random():.2f}\n"
        for _ in range(48)
    ]
    (directory / "pairs.csv").write_text("query,document,relevance\n" + "".join(lines))
    flags = [f"--config={__file__}", f"--config.init_from={directory / 'bert'}"]
    flags += [f"--config.data.input={directory / 'pairs.csv'}", f"--workdir={directory / 'run'}"]
    return directory, runs.succeed([sys.executable, "-m", "bert_jax.finetune", *flags])


def test_it_is_trained_and_its_verb_is_proposed(finished):
    directory, printed = finished
    results = json.loads((directory / "run" / "results.json").read_text())
    assert results["step"] == 5 and -1 <= results["score"] <= 1
    names = f"--part={SELF}:PairTask --part={SELF}:HEAD"
    assert f"{names} rank 'Where do fish live?'" in " ".join(printed.split())


@pytest.mark.filterwarnings("ignore:.*unknown to the vocabulary")
def test_it_predicts_and_is_exported_where_the_user_names_it(finished, tmp_path):
    directory, _ = finished
    query, documents = "the man", ("a dog", "the man ran")
    with pytest.raises(UserError, match=f"add --part={SELF}:HEAD"):
        bert_jax.load(str(directory / "run"))
    command = [sys.executable, "-m", "bert_jax.predict", f"--model={directory / 'run'}"]
    words = [f"--part={SELF}:HEAD", "--json", "rank", query, *documents]
    printed = json.loads(runs.succeed([*command, *words]).splitlines()[-1])
    bert = bert_jax.load(str(directory / "run"), parts=[f"{SELF}:HEAD"])
    ranked = bert.rank(query, documents)
    assert printed["ranking"] == pytest.approx(dict(ranked), abs=1e-6)
    assert not hasattr(bert, "classify")
    convert(str(directory / "run"), str(tmp_path / "hf"), "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    logit = bert_jax.load(str(tmp_path / "hf")).classify(query, ranked[0][0])
    assert expit(logit) == pytest.approx(ranked[0][1], abs=1e-6)
    parts.trust(f"{SELF}:PairTask")
    scores = score_file(directory / "run", directory / "pairs.csv")
    assert scores["num_rows"] == 48 and -1 <= scores["pearson"] <= 1
