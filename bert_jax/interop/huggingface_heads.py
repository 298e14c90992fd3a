"""The heads of fine-tuned models in a config.json of `transformers`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.interop.family import Family
from bert_jax.interop.names import Shape, foreign_names
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import POOLER, head_of
from bert_jax.models.task_models import TASK_MODELS, num_outputs

_REGRESSION = "regression"
_SINGLE_LABEL = "single_label_classification"
_MULTI_LABEL = "multi_label_classification"
_CAUSAL_POOLING = "it pools the first token, which sees no other one in a causal model"


class Head(NamedTuple):
    """The head of a fine-tuned model; see `bert_jax.interop.pretrained.Pretrained`."""

    name: str = ""
    labels: tuple[str, ...] = ()
    multi_label: bool = False


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
        raise UserError(
            f"{pretrained.source} {problem}, which no class of transformers does: it cannot be "
            "converted"
        )


def head_config(head: Head) -> dict[str, Any]:
    """Returns the keys of a config.json that describe a head."""
    if not head.name:
        return {}
    config: dict[str, Any] = {"classifier_dropout": TASK_MODELS[head.name].DROPOUT}
    if head.name == "sequence_classification":
        kind = _MULTI_LABEL if head.multi_label else _SINGLE_LABEL
        config["problem_type"] = kind if head.labels else _REGRESSION
    if head.name.endswith("classification"):
        # Regression has one label.
        names = head.labels or ("LABEL_0",)
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config


def read_head(
    config: Mapping[str, Any], found: Mapping[str, Shape], family: Family, causal: bool
) -> tuple[Head, str]:
    """Returns the head that a config and the tensors beside it have.

    Args:
      config: The config.json.
      found: The tensors' current names and their shapes.
      family: The model's family.
      causal: Whether the model is causal.

    Returns:
      The head and an empty text; or no head, and why the one in the config cannot be used.
    """
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    head = next((h for h, c in family.task_classes.items() if c.name == named), "")
    if not head:
        return Head(), ""
    output = foreign_names([family.task_classes[head].output], "huggingface", 0)
    names = [theirs.name for theirs in output.values()]
    missing = [name for name in names if name not in found]
    if TASK_MODELS[head].POOLED:
        if causal:
            return Head(), _CAUSAL_POOLING
        encoder = foreign_names(family.names, "huggingface", 0)
        pooler = [theirs.name for ours, theirs in encoder.items() if head_of(ours) == POOLER]
        if not any(name in found for name in pooler):
            missing.append("pooler")
    if missing:
        return Head(), f"its {named} has no {', '.join(missing)}"
    outputs = [found[name][0] for name in names if found[name]]
    if outputs != [outputs[0]] * len(names):
        return Head(), f"{' and '.join(names)} do not fit each other"
    if not head.endswith("classification"):
        if outputs[0] != num_outputs(head, 0):
            return Head(), f"{names[0]} has {outputs[0]} outputs, not {num_outputs(head, 0)}"
        return Head(head), ""
    return _classifier(config, head, outputs[0])


def _classifier(config: Mapping[str, Any], head: str, num_labels: int) -> tuple[Head, str]:
    """Reads the labels; like `transformers`, derives what is missing from their number."""
    kind = config.get("problem_type") if head == "sequence_classification" else _SINGLE_LABEL
    if kind is None:
        kind = _SINGLE_LABEL if num_labels > 1 else _REGRESSION
    if kind == _REGRESSION:
        if num_labels > 1:
            return Head(), f"it predicts {num_labels} numbers at once"
        return Head(head), ""
    if kind not in (_SINGLE_LABEL, _MULTI_LABEL):
        return Head(), f"problem_type is {kind!r}, which transformers does not have"
    names = config.get("id2label")
    if names is None:
        # transformers does not write its own default names.
        names = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    keys = [str(i) for i in range(num_labels)]
    if not isinstance(names, dict) or sorted(names) != sorted(keys):
        return Head(), f"id2label in its config does not name the {num_labels} labels"
    labels = tuple(str(names[key]) for key in keys)
    if any("\ud800" <= letter <= "\udfff" for label in labels for letter in label):
        return Head(), "id2label in its config has a lone surrogate"
    return Head(head, labels, kind == _MULTI_LABEL), ""
