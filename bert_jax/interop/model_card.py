"""The README.md of an exported model: what it is, how it was trained, and its scores."""

import re
from collections.abc import Sequence
from typing import Any

from bert_jax.config import flatten
from bert_jax.interop.family import Family
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.interop.weights import head_labels
from bert_jax.objectives.term import Term
from bert_jax.objectives.terms import make_terms

# Results of pre-training that no term declares.
_COMMON_RESULTS = {
    "num_sequences": "sequences",
    "max_seq_length": "maximum sequence length (tokens)",
}
# The folders of absolute paths, which mean nothing on another machine.
_FOLDERS = re.compile(r"(?<![^\s,=])(\w+:/)?/([^\s,=/]+/)*(?=[^\s,=/])")
_NOT_MEASURED = ["## Results", "", "Not measured.", ""]


def model_card(
    pretrained: Pretrained,
    family: Family,
    class_name: str,
    pipeline: str,
    embedding: Embedding | None = None,
) -> str:
    """Writes Markdown with the front matter that the Hugging Face Hub reads.

    If the head of the first term is untrained, there is no `pipeline_tag`: its predictions would
    be random. With `embedding`, the card is that of a directory of sentence-transformers.
    """
    model, training = pretrained.model, pretrained.training
    tags, library = [family.model_types[0]], "transformers"
    loading = f"`transformers.{class_name}` and `AutoTokenizer`"
    if embedding:
        library, pipeline = "sentence-transformers", "sentence-similarity"
        tags += [library, "feature-extraction"]
        loading = "`sentence_transformers.SentenceTransformer`"
    if pretrained.head:
        results = _task_results(training.get("results") or {}, training.get("step"))
    else:
        terms = make_terms(pretrained.terms)
        tags += [term.label.lower().replace(" ", "-") for term in terms]
        first = head_labels(pretrained.model_config, pretrained.terms[:1]).values()
        if set(first) & set(pretrained.untrained_heads):
            pipeline = ""
        results = _results(terms, training.get("results") or {}, training.get("step"))
    described = {key: model[key] for key in family.config_keys}
    described |= {"causal": model["causal"] or None, "labels": pretrained.labels or None}
    lines = [
        "---",
        f"library_name: {library}",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []),
        f"tags: [{', '.join(tags)}]",
        "---",
        "",
        f"# {family.title}, L{model['num_hidden_layers']} H{model['hidden_size']}",
        "",
        f"Written by bert_jax. Load it with {loading}.",
        "",
        *_table("Model", described),
    ]
    if embedding:
        lines += _table("Sentence embeddings", embedding._asdict())
    if tokenizer := pretrained.tokenizer:
        lines += _table("Tokenizer", tokenizer.options | {"tokens": tokenizer.vocab_size})
    lines += [*_training(training), *results]
    if pretrained.warnings:
        lines += ["## Caveats", "", *(f"- {warning}" for warning in pretrained.warnings), ""]
    return "\n".join(lines)


def _training(training: dict[str, Any]) -> list[str]:
    if not training.get("config"):
        return ["## Training", "", "Unknown: the weights were imported.", ""]
    config, corpus = training["config"], training.get("corpus") or {}
    facts: dict[str, Any] = {"steps": training.get("step")}
    # Set if the run did not start from scratch.
    facts |= {key: config.get(key) for key in ("init_from", "resume_from", "task")}
    for section in ("objective", "train", "optimizer", "schedule", "data"):
        for key, value in flatten(config.get(section) or {}):
            # The stages follow one by one below.
            if key != "stages":
                facts[f"{section}.{key}"] = value
    for i, stage in enumerate((config.get("train") or {}).get("stages") or []):
        facts[f"train.stages[{i}]"] = ", ".join(
            f"{key} {value if isinstance(value, str) else f'{value:g}'}"
            for key, value in stage.items()
            if value not in (0, "", -1)
        )
    facts |= {"seed": config.get("seed"), "dtype": config.get("dtype")}
    # The options that the corpus was made with are in the config's `data` already.
    facts |= {
        f"corpus.{key}": value
        for key, value in flatten(corpus)
        if not key.startswith(("options.", "tokenizer.", "format_version", "report.formats"))
    }
    return _table("Training", facts)


def _results(terms: Sequence[Term], results: dict[str, Any], step: int | None) -> list[str]:
    """Lists the terms' metrics beside a baseline without context."""
    rows = {}
    for metric in (metric for term in terms for metric in term.metrics):
        if metric.name in results:
            baseline = ""
            if metric.baseline in results:
                baseline = f"{_number(results[metric.baseline])} ({metric.baseline_label})"
            rows[metric.label] = f"{_number(results[metric.name])} | {baseline}"
    if not rows:
        return _NOT_MEASURED
    where = "On held-out documents, with fixed pairs and masks"
    where += f", after step {step:,}." if step is not None else "."
    common = {text: results[key] for key, text in _COMMON_RESULTS.items() if key in results}
    return [
        *("## Results", "", where, ""),
        *("| | this model | baseline |", "|---|---|---|"),
        *(f"| {label} | {values} |" for label, values in rows.items()),
        "",
        *(_table("", common) if common else []),
    ]


def _task_results(results: dict[str, Any], step: int | None) -> list[str]:
    if not results:
        return _NOT_MEASURED
    scores = {name: f"{value:.4g}" for name, value in results.items()}
    return ["## Results", "", f"On the validation split, step {step:,}.", "", *_table("", scores)]


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _table(title: str, facts: dict[str, Any]) -> list[str]:
    rows = [f"| {key} | {cell} |" for key, value in facts.items() if (cell := _cell(value))]
    heading = [f"## {title}", ""] if title else []
    return [*heading, "| | |", "|---|---|", *rows, ""]


def _cell(value: Any) -> str:
    """Formats a value for one cell; empty for None and for an empty value."""
    values = value if isinstance(value, list | tuple) else [value]
    text = ", ".join("" if x is None else str(x) for x in values)
    return " ".join(_FOLDERS.sub("", text).replace("|", "\\|").split())
