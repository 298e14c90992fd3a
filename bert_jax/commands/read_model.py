"""The models that a config names: what a run begins with, its teacher, and its guide."""

from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from bert_jax.interop.pretrained import Pretrained
from bert_jax.objectives.terms import make_terms


def read_model(path: str) -> Pretrained:
    """Reads a model of any known format, without rows beyond its vocabulary."""
    from bert_jax.interop.formats import read_pretrained

    return read_pretrained(path)


def read_teacher(config: ConfigDict) -> Pretrained | None:
    """Reads the teacher of a config; None if no term needs one, or none is named."""
    terms = make_terms(config.objective.terms)
    if not (config.objective.teacher and any(term.needs_teacher for term in terms)):
        return None
    return read_model(config.objective.teacher)


def read_guide(config: ConfigDict) -> Callable[[Any], Any]:
    """Reads the guide of sentence embeddings; returns what adds its vectors to training rows."""
    path = config.embedding.guide if "embedding" in config else ""
    if not path:
        return lambda rows: rows
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.inference.guide import GuidedRows
    from bert_jax.tasks.mixed_rows import MixedRows

    guide = load_bert(path)

    def guided(rows: Any) -> Any:
        return rows.mapped(guided) if isinstance(rows, MixedRows) else GuidedRows(rows, guide)

    return guided
