"""How relevant documents are to a query: `bert.rerank`."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from scipy.special import expit

from bert_jax.base.errors import UserError
from bert_jax.config.task_sections import rerank_activation
from bert_jax.heads.head import Head
from bert_jax.heads.verb import Item, Verb, value_of
from bert_jax.tokenizers.given_texts import one_or_all, with_lists

if TYPE_CHECKING:
    from bert_jax.inference.finetuned import FineTuned
    from bert_jax.training.stages import Stage

# The number of pairs between two updates of the progress.
_CHUNK = 1024
# What turns a logit into a score, by the name in `Pretrained.activation`.
ACTIVATIONS = {"sigmoid": expit, "identity": lambda logits_N: logits_N}


class Ranked(NamedTuple):
    """One of the documents, its index among them, and how relevant it is to the query."""

    text: str
    index: int
    score: float


def rerank(
    bert: "FineTuned",
    query: str | Sequence[str],
    documents: Sequence[str] | Sequence[Sequence[str]],
    *,
    top_k: int | None = None,
    activation: str | None = None,
) -> list[Ranked] | list[list[Ranked]]:
    """Ranks documents by their relevance to a query, the most relevant first.

    Args:
      query: One query, or a list of them.
      documents: Texts. For a list of queries, a list with the documents of each; the result is
        then a list of lists.
      top_k: The number of documents in the result; by default all. Documents with equal scores
        stay in the order given.
      activation: See `pair_scores`.
    """
    if top_k is not None and top_k < 1:
        raise UserError(f"top_k is {top_k}; it must be at least 1")
    asked = with_lists(query, documents, "documents")
    pairs = [(text, document) for text, texts in asked for document in texts]
    scores, found = iter(pair_scores(bert, pairs, activation).tolist()), []
    for _, texts in asked:
        ranked = [Ranked(text, i, next(scores)) for i, text in enumerate(texts)]
        found.append(sorted(ranked, key=lambda document: -document.score)[:top_k])
    return one_or_all(query, found)


def pair_scores(
    bert: "FineTuned",
    pairs: Iterable[tuple[str, str]],
    activation: str | None = None,
    *,
    advance: Callable[[int], None] = lambda pairs: None,
) -> np.ndarray:
    """Computes the scores of N pairs of a query and a document: float32 [N].

    Args:
      pairs: Read and scored in parts, so that there may be any number.
      activation: "sigmoid" or "identity"; by default as in the model's files, or "sigmoid".
      advance: Called with the number of pairs of each part.
    """
    if len(bert.labels) > 1 or bert.config.num_decoder_layers:
        problem = f"has {len(bert.labels)} labels" if bert.labels else "has a decoder"
        raise UserError(f"{bert.source} {problem}; rerank needs an encoder with one output")
    name = activation or bert.activation or "sigmoid"
    if name not in ACTIVATIONS:
        raise UserError(
            f"the activation of {bert.source} is {name!r}; it must be sigmoid or identity, such as "
            "in rerank(..., activation='identity')"
        )
    # A prompt is put before the query only.
    embedding, pairs = bert.embedding_with(None, None, None), iter(pairs)
    logits, num_cut = [], 0
    while part := list(itertools.islice(pairs, _CHUNK)):
        rows = bert.embedding_rows(part, embedding, warns=False)
        num_cut += sum(row.num_cut > 0 for row in rows)
        bert.warn_about_unknown(rows)
        logits += [logits_1x1.item() for logits_1x1 in bert.outputs(rows)]
        advance(len(part))
    bert.warn_about_cut(num_cut, len(logits), embedding.max_length)
    return ACTIVATIONS[name](np.array(logits, np.float32))


def _predict(bert: "FineTuned", items: list[Item]) -> list[Item]:
    queries = [value_of(item, "query") for item in items]
    # The words of a command line are a tuple.
    lists = [value_of(item, "documents", list | tuple) for item in items]
    if () in lists:
        raise UserError("there is no document to rank; give each in quotes after the query")
    return [
        {
            "ranking": [
                {"rank": rank, "score": x.score, "index": x.index, "text": x.text}
                for rank, x in enumerate(ranked, 1)
            ]
        }
        for ranked in rerank(bert, queries, lists)
    ]


def _loss_options(
    config: ConfigDict, class_counts: Mapping[str, int], stage: "Stage"
) -> dict[str, Any]:
    own, options = config.rerank, {}
    if own.loss == "bce":
        negatives = class_counts.get("negative", 0) / max(1, class_counts.get("positive", 0))
        options["pos_weight"] = own.pos_weight or negatives or 1.0
    elif own.loss == "kl":
        options["temperature"] = own.temperature
    return {"loss_name": own.loss, "options": options}


def _embedding(config: ConfigDict) -> dict[str, Any]:
    prompt = config.rerank.query_prompt
    return {
        "max_length": config.data.max_seq_length,
        "prompt": prompt,
        "library": {
            "prompts": {"query": prompt} if prompt else {},
            "default_prompt_name": "query" if prompt else None,
        },
    }


def _batch_fields(config: ConfigDict, texts: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Describes what `tasks.rerank.CandidateRows` gives."""
    shape = config.train.batch_size, texts
    inputs = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"))
    return {name: ((*shape, config.data.max_seq_length), np.int32) for name in inputs} | {
        "labels": (shape, np.float32),
        "mask": (shape, np.bool_),
    }


HEAD = Head(
    model="bert_jax.models.task_models:BertForMultipleChoice",
    loss="bert_jax.objectives.ranking:RankingLoss",
    num_outputs=1,
    loss_options=_loss_options,
    embedding=_embedding,
    activation=lambda config: rerank_activation(config.rerank),
    batch_fields=_batch_fields,
    # A positive and the negatives that are drawn.
    num_texts=lambda config: 1 + config.rerank.num_negatives,
    task="rerank",
    stored_as="sequence_classification",
    methods={"rerank": rerank},
    verb=Verb(
        "rerank",
        _predict,
        inspect.signature(lambda query, *documents: None),
        example=("'Where do fish live?'", "'Fish live in water.'", "'Birds live in trees.'"),
    ),
    advice={
        "score it on retrieval": "evaluate --model={path} --retrieval=FOLDER",
        "load it in sentence-transformers": (
            "convert --model={path} --output=DIR --to=sentence_transformers"
        ),
    },
)
