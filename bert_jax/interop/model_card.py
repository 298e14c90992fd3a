"""The README.md of an exported model: what it is, how it was trained, how good it is."""

from typing import Any

from bert_jax.config import flatten
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import HEADS
from bert_jax.models.task_models import TASK_MODELS

MLM_HEAD = HEADS["mlm/"]
_PIPELINES = {
    "sequence_classification": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
}
_SCORES = {
    "mlm_loss": "masked-LM loss (nats)",
    "mlm_accuracy": "masked-LM accuracy",
    "mlm_perplexity": "masked-LM perplexity",
    "nsp_loss": "next-sentence loss (nats)",
    "nsp_accuracy": "next-sentence accuracy",
    "unigram_mlm_loss": "masked-LM loss of unigram frequencies (nats)",
    "unigram_mlm_accuracy": "masked-LM accuracy of unigram frequencies",
    "majority_nsp_accuracy": "next-sentence accuracy of the commoner label",
    "num_sequences": "sequences",
    "max_seq_length": "tokens a sequence, at the most",
}


def model_card(pretrained: Pretrained) -> str:
    """Markdown with the front matter that Hugging Face's hub reads."""
    model, training, head = pretrained.model, pretrained.training, pretrained.head
    pipeline, tags = _PIPELINES.get(head), "bert"
    if not head:
        # Untrained, the head would fill masks at random.
        pipeline = None if MLM_HEAD in pretrained.untrained_heads else "fill-mask"
        tags = "bert, masked-lm, next-sentence-prediction"
    name = TASK_MODELS[head].__name__ if head else "BertForPreTraining"
    lines = [
        "---",
        "library_name: transformers",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []),
        f"tags: [{tags}]",
        "---",
        "",
        f"# BERT, L{model['num_hidden_layers']} H{model['hidden_size']}",
        "",
        f"Written by bert_jax; loads as `transformers.{name}`, with `AutoTokenizer`.",
        "",
        *_table("Model", model | ({"labels": pretrained.labels} if pretrained.labels else {})),
        *_tokenizer(pretrained),
        *_training(training),
        *(_scores if head else _results)(training.get("results") or {}, training.get("step")),
    ]
    if pretrained.warnings:
        lines += ["## Mind", "", *(f"- {warning}" for warning in pretrained.warnings), ""]
    return "\n".join(lines)


def _tokenizer(pretrained: Pretrained) -> list[str]:
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        return []
    return _table("Tokenizer", {**tokenizer.options, "entries": tokenizer.vocab_size})


def _training(training: dict[str, Any]) -> list[str]:
    if not training.get("config"):
        return ["## Training", "", "Not known: the weights came from elsewhere.", ""]
    config, corpus = training.get("config") or {}, training.get("corpus") or {}
    facts: dict[str, Any] = {"steps": training.get("step")}
    # Where it did not begin from scratch.
    facts |= {key: config.get(key) or None for key in ("init_from", "resume_from")}
    facts |= {"task": config.get("task")}
    for section in ("train", "optimizer", "schedule", "data"):
        for key, value in (config.get(section) or {}).items():
            # The sequence lengths are told one by one below.
            if not isinstance(value, list | dict) or key == "input":
                facts[f"{section}.{key}"] = value
    for i, stage in enumerate((config.get("train") or {}).get("stages") or []):
        facts[f"train.stages[{i}]"] = ", ".join(f"{k} {v:g}" for k, v in stage.items() if v)
    facts |= {"seed": config.get("seed"), "dtype": config.get("dtype")}
    # What the corpus was made with stands in the config's `data` already.
    facts |= {
        f"corpus.{key}": value
        for key, value in flatten(corpus)
        if not key.startswith(("options.", "tokenizer.", "format_version"))
    }
    return _table("Training", facts)


def _results(results: dict[str, Any], step: int | None) -> list[str]:
    scores = {
        text: f"{results[key]:,.4g}" if isinstance(results[key], float) else results[key]
        for key, text in _SCORES.items()
        if key in results
    }
    if not scores:
        return ["## Results", "", "Not measured.", ""]
    where = "On documents that were held out of the training, fixed pairs, 15 % masked"
    where += f", after step {step:,}." if step is not None else "."
    return ["## Results", "", where, "", *_table("", scores)]


def _scores(results: dict[str, Any], step: int | None) -> list[str]:
    """Of a fine-tuned model: what its task's metrics are called, they are called there too."""
    if not results:
        return ["## Results", "", "Not measured.", ""]
    scores = {name: f"{value:.4g}" for name, value in results.items()}
    return ["## Results", "", f"On the validation split, step {step:,}.", "", *_table("", scores)]


def _table(title: str, facts: dict[str, Any]) -> list[str]:
    rows = [f"| {key} | {_cell(value)} |" for key, value in facts.items() if value is not None]
    heading = [f"## {title}", ""] if title else []
    return [*heading, "| | |", "|---|---|", *rows, ""]


def _cell(value: Any) -> str:
    """Text that cannot break out of its cell."""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return " ".join(text.replace("|", "\\|").split()) or "(none)"
