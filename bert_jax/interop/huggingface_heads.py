"""Reads and writes the heads of fine-tuned models in a config.json of `transformers`."""

from collections.abc import Mapping
from typing import Any

from bert_jax.base.errors import UserError
from bert_jax.interop.family import Family
from bert_jax.interop.names import Tensor, foreign_names
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import POOLER, head_of
from bert_jax.models.task_models import TASK_MODELS, num_outputs

_REGRESSION = "regression"
_SINGLE_LABEL = "single_label_classification"
_MULTI_LABEL = "multi_label_classification"


def check_head(pretrained: Pretrained) -> None:
    """Raises UserError if `transformers` has no class for a fine-tuned model."""
    problem = ""
    if pretrained.features:
        problem = "reads the states of several layers (config.train.features)"
    elif pretrained.bilstm_size:
        problem = "has a BiLSTM (config.train.bilstm_size)"
    elif pretrained.model["causal"] and TASK_MODELS[pretrained.head].POOLED:
        problem = "is causal and pools the last token"
    if problem:
        raise UserError(f"{pretrained.source} {problem}, which no class of transformers supports")


def head_config(pretrained: Pretrained) -> dict[str, Any]:
    """Returns the keys of a config.json that describe a fine-tuned model's head."""
    head, labels = pretrained.head, pretrained.labels
    config: dict[str, Any] = {"classifier_dropout": TASK_MODELS[head].DROPOUT}
    if head == "sequence_classification":
        kind = _MULTI_LABEL if pretrained.multi_label else _SINGLE_LABEL
        config["problem_type"] = kind if labels else _REGRESSION
    if head.endswith("classification"):
        # Regression has one label.
        names = labels or ("LABEL_0",)
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config


def read_head(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family, causal: bool
) -> dict[str, Any]:
    """Returns the head that a config and its tensors describe, as attributes of a `Pretrained`.

    Raises:
      UserError: The config names a head that cannot be used.
    """
    named = config.get("architectures") or [""]
    head = next((h for h, c in family.task_classes.items() if c.name == named[0]), "")
    if not head:
        return {}
    if TASK_MODELS[head].POOLED and causal:
        raise UserError(
            "its head pools the first token, which attends to no other token in a causal model"
        )
    task_class = family.task_classes[head]
    output = [t.name for t in foreign_names([task_class.output], "huggingface", 0).values()]
    needed = list(output)
    if TASK_MODELS[head].POOLED:
        names = foreign_names([*family.names, *task_class.names], "huggingface", 0)
        needed += [theirs.name for ours, theirs in names.items() if head_of(ours) == POOLER]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise UserError(f"its {named[0]} has no {', '.join(missing)}")
    width = tensors[output[0]].shape[0]
    if head.endswith("classification"):
        return {"head": head, **_labels(config, head, width)}
    if width != num_outputs(head, 0):
        raise UserError(f"{output[0]} has {width} outputs, not {num_outputs(head, 0)}")
    return {"head": head}


def _labels(config: Mapping[str, Any], head: str, num_labels: int) -> dict[str, Any]:
    """Reads the labels; derives missing keys from the number of labels, as `transformers` does."""
    kind = config.get("problem_type") if head == "sequence_classification" else _SINGLE_LABEL
    if kind is None:
        kind = _SINGLE_LABEL if num_labels > 1 else _REGRESSION
    if kind == _REGRESSION:
        if num_labels > 1:
            raise UserError(f"its head predicts {num_labels} numbers at once")
        return {}
    if kind not in (_SINGLE_LABEL, _MULTI_LABEL):
        raise UserError(f"problem_type is {kind!r}, which transformers does not have")
    names = config.get("id2label")
    if names is None:
        # transformers does not write its own default names.
        names = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    keys = [str(i) for i in range(num_labels)]
    if not isinstance(names, dict) or sorted(names) != sorted(keys):
        raise UserError(f"id2label in its config does not name the {num_labels} labels")
    return {"labels": tuple(str(names[k]) for k in keys), "multi_label": kind == _MULTI_LABEL}
