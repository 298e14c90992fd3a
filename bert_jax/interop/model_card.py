"""The README.md of an exported model: what it is, how it was trained, and its scores."""

import re
from typing import Any

from bert_jax.batches.corruption.diffusion import LEAST_RATE
from bert_jax.config import flatten
from bert_jax.config.data import MASKING
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.family import Family
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import head_labels
from bert_jax.objectives.terms import make_terms
from bert_jax.tasks.candidate_scores import FIRST_PREFIX

_CARD = """\
---
library_name: {library}
{pipeline}tags: [{tags}]
---

# {title}, L{num_hidden_layers} H{hidden_size}

Written by bert_jax. Load it with {loading}.
{example}
## Model

{model}

## Training

{training}

## Results

{results}
"""
_RERANKER = """
```python
from sentence_transformers import CrossEncoder

reranker = CrossEncoder("PATH")
documents = ["Emma is a name.", "Emma is a novel by Jane Austen."]
print(reranker.rank("Who wrote Emma?", documents, return_documents=True))
```

In bert_jax, `bert_jax.load("PATH").rerank("Who wrote Emma?", documents)` has the same scores.
"""
_RETRIEVER = """
```python
from sentence_transformers import {name}

model = {name}("PATH")
queries = model.encode_query(["Who wrote Emma?"])
documents = model.encode_document(["Emma is a name.", "Emma is a novel by Jane Austen."])
print(model.similarity(queries, documents))
```

In bert_jax, `bert_jax.load("PATH")` has the same methods.
"""
# The class of sentence-transformers and the tags, by the kind of embedding.
_KINDS = {
    "dense": ("SentenceTransformer", ["feature-extraction"]),
    "sparse": ("SparseEncoder", ["sparse-encoder", "sparse", "splade"]),
    "multi_vector": ("MultiVectorEncoder", ["multi-vector", "colbert", "late-interaction"]),
}
# The folders of absolute paths, which mean nothing on another machine.
_FOLDERS = re.compile(r"(?<![^\s,=])(\w+:/)?/([^\s,=/]+/)*(?=[^\s,=/])")
_SECTIONS = ("objective", "train", "optimizer", "schedule", "data")
_KEYS = ("init_from", "resume_from", "task", "seed", "dtype")


def model_card(
    pretrained: Pretrained,
    family: Family,
    class_name: str,
    pipeline: str,
    embedding: Embedding | None = None,
) -> str:
    """Writes Markdown with the front matter that the Hugging Face Hub reads.

    If the head of the first term is untrained, there is no `pipeline_tag`: its predictions would
    be random. With `embedding`, the card is that of a directory of sentence-transformers. A model
    with an `activation` is a reranker.
    """
    tags, library, example = [family.model_types[0]], "transformers", ""
    loading = f"`transformers.{class_name}` and `AutoTokenizer`"
    terms = () if pretrained.head else make_terms(pretrained.terms)
    if pretrained.activation:
        library, pipeline, example = "sentence-transformers", "text-ranking", _RERANKER
        tags += [library, "cross-encoder", "reranker"]
        loading = f"`sentence_transformers.CrossEncoder`, or {loading}"
    elif embedding:
        library, pipeline = "sentence-transformers", "sentence-similarity"
        name, own_tags = _KINDS[embedding.kind]
        if embedding.kind != "dense":
            pipeline, example = "feature-extraction", _RETRIEVER.format(name=name)
        tags += [library, *own_tags]
        loading = f"`sentence_transformers.{name}`"
    elif terms:
        first = head_labels(pretrained.model_config, pretrained.terms[:1]).values()
        pipeline = "" if set(first) & set(pretrained.untrained_heads) else pipeline
    tags += [term.label.lower().replace(" ", "-") for term in terms]
    described = {key: pretrained.model[key] for key in family.config_keys}
    described |= {"causal": pretrained.model["causal"] or None, "labels": pretrained.labels}
    if pretrained.tokenizer:
        described |= {f"tokenizer.{k}": v for k, v in pretrained.tokenizer.options.items()}
        described["tokenizer.tokens"] = pretrained.tokenizer.vocab_size
    if pretrained.head:
        described |= {"activation": pretrained.activation, "prompt": pretrained.embedding.prompt}
    elif embedding:
        usual = Embedding(pooling=None, normalize=None, similarity="")
        described |= {
            f"embedding.{key}": value
            for key, value in embedding._asdict().items()
            if value != getattr(usual, key)
        }
    card = _CARD.format(
        library=library,
        pipeline=f"pipeline_tag: {pipeline}\n" if pipeline else "",
        tags=", ".join(tags),
        title=family.title,
        loading=loading,
        example=example,
        model=_table(described),
        training=_table(_training(pretrained.training)) or "Unknown: the weights were imported.",
        results=_table(_results(terms, pretrained.training.get("results"))) or "Not measured.",
        **{key: pretrained.model[key] for key in ("num_hidden_layers", "hidden_size")},
    )
    if pretrained.warnings:
        card += "\n## Caveats\n\n" + "".join(f"- {warning}\n" for warning in pretrained.warnings)
    return card


def _training(training: dict[str, Any]) -> dict[str, Any]:
    if not (config := training.get("config")):
        return {}
    facts = {"steps": training.get("step")} | {key: config.get(key) for key in _KEYS}
    sections = {name: config.get(name) or {} for name in _SECTIONS}
    facts |= dict(flatten(sections))
    if sections["data"].get("corruption") == "diffusion":
        for key in MASKING:
            facts.pop(f"data.{key}", None)
        facts["masking rates"] = f"uniform from {LEAST_RATE:g} to 1, one for each row"
    # The options that the corpus was made with are in the config's `data` already.
    facts |= {
        f"corpus.{key}": value
        for key, value in flatten(training.get("corpus") or {})
        if not key.startswith(("options.", "tokenizer.", "format_version", "report.formats"))
    }
    return facts


def _results(terms: Any, results: dict[str, Any] | None) -> dict[str, Any]:
    """Names the scores of held-out documents or of a validation split in words."""
    words = {}
    for metric in (metric for term in terms for metric in term.metrics):
        words[metric.baseline] = f"{metric.label}, {metric.baseline_label}"
        words[metric.name] = metric.label
    # Only a reranker's scores have those of a first stage beside them.
    firsts = [name for name in results or {} if FIRST_PREFIX in name]
    words |= {name: f"{name.replace(FIRST_PREFIX, '')}, first stage" for name in firsts}
    return {
        words.get(name, name): f"{value:,.4g}" if isinstance(value, float) else value
        for name, value in (results or {}).items()
    }


def _table(facts: dict[str, Any]) -> str:
    """Makes a table of the facts that have a value; empty without one."""
    rows = []
    for key, value in facts.items():
        values = value if isinstance(value, list | tuple) else [value]
        text = ", ".join("" if x is None else str(x) for x in values)
        if cell := " ".join(_FOLDERS.sub("", text).replace("|", "\\|").split()):
            rows.append(f"| {key} | {cell} |")
    return "\n".join(["| | |", "|---|---|", *rows] if rows else [])
