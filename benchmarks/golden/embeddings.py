"""Records losses of sentence embeddings, their gradients, 20 steps of training, and a ranking.

    pip install sentence-transformers==6.2.0
    python -m benchmarks.golden.embeddings

tests/objectives/test_contrastive.py, tests/finetuning/test_embedding.py and
tests/tasks/test_retrieval.py compare bert_jax with the values of sentence-transformers, in float64.
The steps are those of its trainer: AdamW of PyTorch, with the linear schedule of transformers.
"""

import json

import numpy as np
import torch
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import BertModel, get_linear_schedule_with_warmup

from benchmarks.golden.models import load, make_model
from benchmarks.golden.recipe import save_arrays, under
from tests.golden.inputs import embedding_batch, read_golden, section

BATCH, WIDTH, CLASSES = 6, 8, 3
GTE = {
    "directions": ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"),
    "partition_mode": "joint",
}
SYMMETRIC = {
    "directions": ("query_to_doc", "doc_to_query"),
    "partition_mode": "per_direction",
}
DIMS, WEIGHTS = (8, 5, 2), (1.0, 0.5, 2.0)


class Embeddings(nn.Module):
    """Stands for a model: its features are the embeddings."""

    device, tokenizer = torch.device("cpu"), None

    def forward(self, features):
        return dict(features)

    def get_embedding_dimension(self):
        return WIDTH


MODEL = Embeddings()
# The class and its arguments, the number of documents of a row, and the labels.
LOSSES = {
    "mnr": (losses.MultipleNegativesRankingLoss, {}, 1, None),
    "mnr_scale": (losses.MultipleNegativesRankingLoss, {"scale": 50.0}, 1, None),
    "mnr_negatives": (losses.MultipleNegativesRankingLoss, {}, 3, None),
    "symmetric": (losses.MultipleNegativesRankingLoss, SYMMETRIC, 1, None),
    "symmetric_negatives": (losses.MultipleNegativesRankingLoss, SYMMETRIC, 3, None),
    "same_side": (losses.MultipleNegativesRankingLoss, GTE, 1, None),
    "same_side_negatives": (losses.MultipleNegativesRankingLoss, GTE, 3, None),
    "cosent": (losses.CoSENTLoss, {}, 1, "scores"),
    "angle": (losses.AnglELoss, {}, 1, "scores"),
    "cosine": (losses.CosineSimilarityLoss, {}, 1, "scores"),
    "contrastive": (losses.ContrastiveLoss, {}, 1, "binary"),
    "triplet": (losses.TripletLoss, {}, 2, None),
    "softmax": (losses.SoftmaxLoss, {}, 1, "classes"),
    "margin_mse": (losses.MarginMSELoss, {}, 3, "teacher"),
    "kl": (losses.DistillKLDivLoss, {}, 3, "teacher"),
    "kl_temperatures": (
        losses.DistillKLDivLoss,
        {"student_temperature": 2.0, "teacher_temperature": 0.5},
        3,
        "teacher",
    ),
    "matryoshka_mnr": (losses.MultipleNegativesRankingLoss, {}, 3, None),
    "matryoshka_cosent": (losses.CoSENTLoss, {}, 1, "scores"),
}


def inputs() -> dict[str, np.ndarray]:
    """Returns random embeddings, labels, and a ranking with many equal similarities."""
    rng = np.random.RandomState(0)
    relevant_QxN = rng.rand(40, 150) < 0.03
    relevant_QxN[0] = False
    # More relevant documents than are scored.
    relevant_QxN[1, :120] = True
    return {
        "queries": rng.randn(BATCH, WIDTH),
        "documents": rng.randn(BATCH, 3, WIDTH),
        # These are exact in float32, to which the library rounds some labels.
        "scores": np.array([0.25, 1.0, 0.25, 0.625, 0.0, 0.625]),
        "binary": np.array([1, 0, 1, 1, 0, 0]),
        "classes": np.array([2, 0, 1, 2, 2, 0]),
        "teacher": np.sin(np.arange(3.0 * BATCH)).reshape(BATCH, 3),
        "kernel": rng.randn(CLASSES, 3 * WIDTH),
        "bias": rng.randn(CLASSES),
        # Small whole numbers make equal similarities.
        "ranked_queries": rng.randint(-1, 2, (40, 4)).astype(float),
        "ranked_documents": rng.randint(-1, 2, (150, 4)).astype(float),
        "relevant": relevant_QxN,
    }


def record_loss(name: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    make, options, num_documents, labels = LOSSES[name]
    queries = torch.tensor(given["queries"], requires_grad=True)
    documents = torch.tensor(given["documents"][:, :num_documents], requires_grad=True)
    if name == "softmax":
        options = {"embedding_dimension": WIDTH, "num_labels": CLASSES}
    loss = make(MODEL, **options).double()
    if name == "softmax":
        loss.classifier.weight.data = torch.tensor(given["kernel"])
        loss.classifier.bias.data = torch.tensor(given["bias"])
    if name.startswith("matryoshka"):
        loss = losses.MatryoshkaLoss(MODEL, loss, DIMS, WEIGHTS)
    columns = [queries, *documents.unbind(1)]
    features = [{"sentence_embedding": column} for column in columns]
    value = loss(features, None if labels is None else torch.tensor(given[labels]))
    value.backward()
    found = {"loss": value.item(), "queries": queries.grad, "documents": documents.grad}
    print(name, value.item())
    return under(name, found)


def ranking(given: dict[str, np.ndarray]) -> dict[str, float]:
    """Scores the ranking by dot products; ids are such that their order is not that of numbers."""
    relevant = {
        str(q): {str(n) for n in np.flatnonzero(row_N)} for q, row_N in enumerate(given["relevant"])
    }
    evaluator = InformationRetrievalEvaluator(
        {id: id for id in relevant},
        {str(n): str(n) for n in range(len(given["ranked_documents"]))},
        relevant,
        score_functions={"dot": lambda a, b: a @ b.T},
    )
    vectors = {
        "query": torch.tensor(given["ranked_queries"]),
        "document": torch.tensor(given["ranked_documents"]),
    }
    evaluator.embed_inputs = lambda model, texts, encode_fn_name, **_: vectors[encode_fn_name][
        [int(text) for text in texts]
    ]
    found = evaluator.compute_all_metrics(MODEL)["dot"]
    return {
        name.replace("@k", f"@{k}"): value
        for name, values in found.items()
        for k, value in values.items()
    }


def train(loss_name: str) -> dict[str, np.ndarray]:
    """Returns the loss before each of 20 updates, and the weights after the last."""
    golden = read_golden("model_gelu")
    shape = json.loads(str(golden["config"]))
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = make_model(shape | dropout, BertModel.__name__)
    weights = section(golden, "weights")
    load(model, {n.removeprefix("bert."): x for n, x in weights.items()}, torch.float64)
    pooling, loss = Pooling(shape["hidden_size"], "mean"), LOSSES[loss_name][0](MODEL)
    decayed = [p for n, p in model.named_parameters() if "bias" not in n and "LayerNorm" not in n]
    others = [p for n, p in model.named_parameters() if "bias" in n or "LayerNorm" in n]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, eps=1e-8)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 20)
    losses = []
    for step in range(20):
        batch = embedding_batch(step)
        columns = [(batch["input_ids"], batch["attention_mask"])]
        columns += [(batch["document_ids"][:, c], batch["document_mask"][:, c]) for c in range(3)]
        features = []
        for ids, mask in columns:
            ids, mask = torch.tensor(ids).long(), torch.tensor(mask).long()
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
            features.append(pooling({"token_embeddings": states, "attention_mask": mask}))
        value = loss(features, torch.tensor(batch["scores"]))
        losses.append(value.item())
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(losses[0], losses[-1])
    names = ("embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.weight")
    found = dict(model.named_parameters())
    return {"losses": losses, **{f"bert.{n}": found[n].detach().numpy() for n in names}}


def main() -> None:
    given = inputs()
    golden = under("inputs", given)
    for name in LOSSES:
        golden |= record_loss(name, given)
    scores = ranking(given)
    print(scores)
    golden |= under("ranking", scores)
    for name in ("mnr", "margin_mse"):
        golden |= under(f"training_{name}", train(name))
    save_arrays("embeddings", golden)


if __name__ == "__main__":
    main()
