"""The heads of fine-tuned models: what a config.json of `transformers` says of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from bert_jax.interop.names import Shape, huggingface_head_names
from bert_jax.models.task_models import TASK_MODELS, num_outputs

_REGRESSION = "regression"
_SINGLE_LABEL = "single_label_classification"
_MULTI_LABEL = "multi_label_classification"
_POOLER = "bert.pooler."
_HEADS = {model.__name__: head for head, model in TASK_MODELS.items()}


class Head(NamedTuple):
    """Of a fine-tuned model; see `bert_jax.interop.pretrained.Pretrained`."""

    name: str = ""
    labels: tuple[str, ...] = ()
    multi_label: bool = False


def class_name(head: str) -> str:
    """transformers' name of the model with this head, a key of TASK_MODELS or empty."""
    return TASK_MODELS[head].__name__ if head else "BertForPreTraining"


def head_config(head: Head) -> dict[str, Any]:
    """What a config.json says of a fine-tuned model beside its encoder."""
    if not head.name:
        return {}
    config: dict[str, Any] = {"classifier_dropout": TASK_MODELS[head.name].DROPOUT}
    if head.name == "sequence_classification":
        kind = _MULTI_LABEL if head.multi_label else _SINGLE_LABEL
        config["problem_type"] = kind if head.labels else _REGRESSION
    if head.name.endswith("classification"):
        # A number is the one label of its class.
        names = head.labels or ("LABEL_0",)
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    return config


def read_head(config: Mapping[str, Any], found: Mapping[str, Shape]) -> tuple[Head, str]:
    """The head that a config and the tensors beside it have.

    Args:
      config: The config.json.
      found: The tensors' names, as transformers writes them today, and shapes.

    Returns:
      The head, and empty text; or none, and why that which the config names cannot be used.
    """
    architectures = config.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    head = _HEADS.get(named, "") if isinstance(named, str) else ""
    if not head:
        return Head(), ""
    names = [outside.name for outside in huggingface_head_names(head).values()]
    missing = [name for name in names if name not in found]
    if TASK_MODELS[head].POOLED and not any(name.startswith(_POOLER) for name in found):
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
    """As transformers does: what a config does not tell follows from the number of labels."""
    kind = config.get("problem_type") if head == "sequence_classification" else _SINGLE_LABEL
    if kind is None:
        kind = _SINGLE_LABEL if num_labels > 1 else _REGRESSION
    if kind == _REGRESSION:
        if num_labels > 1:
            return Head(), f"it predicts {num_labels} numbers at once"
        return Head(head), ""
    if kind not in (_SINGLE_LABEL, _MULTI_LABEL):
        return Head(), f"problem_type is {kind!r}, which is none of transformers'"
    names = config.get("id2label")
    if names is None:
        # It does not write the names that it would make up itself.
        names = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    keys = [str(i) for i in range(num_labels)]
    if not isinstance(names, dict) or sorted(names) != sorted(keys):
        return Head(), f"id2label of its config does not name the {num_labels} labels"
    labels = tuple(str(names[key]) for key in keys)
    if any("\ud800" <= letter <= "\udfff" for label in labels for letter in label):
        return Head(), "id2label of its config has a lone surrogate"
    return Head(head, labels, kind == _MULTI_LABEL), ""
