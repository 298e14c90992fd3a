"""Fine-tuned models on their way to other programs, without these programs."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop import formats
from tests.interop.small_bert import (
    copies,
    edit_json,
    edit_tensors,
    make_finetuned,
    same_weights,
)

LABELS = ("no", "perhaps", "yes")


def exported(tmp_path, head, labels=LABELS):
    formats.write(make_finetuned(head, labels), tmp_path / "hf", "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    return config, load_file(tmp_path / "hf" / "model.safetensors")


def test_a_class_and_its_labels(tmp_path):
    config, tensors = exported(tmp_path, "sequence_classification")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    assert config["problem_type"] == "single_label_classification"
    ours = make_finetuned("sequence_classification", LABELS).weights
    np.testing.assert_array_equal(tensors["classifier.weight"], ours["classifier/dense/kernel"].T)
    np.testing.assert_array_equal(tensors["classifier.bias"], ours["classifier/dense/bias"])
    assert not [name for name in tensors if name.startswith("cls.")], "no heads of pre-training"
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card and "no, perhaps, yes" in card


def test_a_number_has_no_classes(tmp_path):
    config, tensors = exported(tmp_path, "sequence_classification", ())
    assert config["problem_type"] == "regression" and len(config["id2label"]) == 1
    assert tensors["classifier.weight"].shape == (1, 12)


def test_spans_are_called_otherwise_there(tmp_path):
    config, tensors = exported(tmp_path, "question_answering", ())
    assert config["architectures"] == ["BertForQuestionAnswering"] and "id2label" not in config
    assert tensors["qa_outputs.weight"].shape == (2, 12)
    assert not [name for name in tensors if "pooler" in name]


HEADS = [
    ("sequence_classification", LABELS),
    ("sequence_classification", ()),
    ("token_classification", LABELS),
    ("question_answering", ()),
    ("multiple_choice", ()),
]


@pytest.mark.parametrize(("head", "labels"), HEADS)
def test_read_back_it_is_what_it_was(tmp_path, head, labels):
    pretrained = make_finetuned(head, labels)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    again = formats.read(tmp_path / "hf")
    assert (again.head, again.labels, again.multi_label) == (head, labels, False)
    assert same_weights(again.weights, weights) and again.warnings == []
    # Any number of times.
    formats.write(again, tmp_path / "twice", "huggingface")
    folders = [tmp_path / "hf", tmp_path / "twice"]
    first, second = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert first == second
    assert same_weights(*(load_file(folder / "model.safetensors") for folder in folders))


def test_labels_that_are_judged_one_by_one(tmp_path):
    pretrained = make_finetuned("sequence_classification", LABELS)
    pretrained.multi_label = True
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    again = formats.read(tmp_path / "hf")
    assert again.multi_label and again.labels == LABELS


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        # As transformers leaves them out where they are its defaults.
        ({"id2label": None, "problem_type": None}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"2": "c", "0": "a", "1": 7}}, ("a", "7", "c")),
    ],
)
def test_labels_as_transformers_tells_them(tmp_path, values, labels):
    exported(tmp_path, "sequence_classification")
    edit_json(tmp_path / "hf" / "config.json", **values)
    again = formats.read(tmp_path / "hf")
    assert again.labels == labels and not again.warnings and not again.multi_label


@pytest.mark.parametrize(
    ("head", "values", "lost", "words"),
    [
        ("sequence_classification", {}, "classifier.", "has no classifier.weight, classifier.bias"),
        ("sequence_classification", {}, "classifier.bias", "has no classifier.bias"),
        ("sequence_classification", {}, "bert.pooler.", "has no pooler"),
        ("sequence_classification", {"problem_type": "regression"}, "", "3 numbers at once"),
        ("sequence_classification", {"problem_type": "x"}, "", "problem_type is 'x'"),
        ("token_classification", {"id2label": {"0": "a"}}, "", "does not name the 3 labels"),
        ("token_classification", {"id2label": ["a", "b", "c"]}, "", "does not name"),
        (
            "token_classification",
            {"id2label": {"0": "a", "1": "\ud800", "2": "c"}},
            "",
            "lone surrogate",
        ),
        (
            "token_classification",
            {"architectures": ["BertForQuestionAnswering"]},
            "",
            "no qa_outputs.weight, qa_outputs.bias",
        ),
        (
            "sequence_classification",
            {"architectures": ["BertForMultipleChoice"]},
            "",
            "classifier.weight has 3 outputs, not 1",
        ),
    ],
)
def test_a_head_that_cannot_be_used_leaves_its_encoder(tmp_path, head, values, lost, words):
    exported(tmp_path, head)
    edit_json(tmp_path / "hf" / "config.json", **values)
    if lost:
        edit_tensors(tmp_path / "hf", lambda t: [t.pop(n) for n in list(t) if n.startswith(lost)])
    again = formats.read(tmp_path / "hf")
    assert not again.head and not again.labels
    assert not [name for name in again.weights if not name.startswith("bert/")]
    assert words in " ".join(again.warnings) and "without its head" in " ".join(again.warnings)


@pytest.mark.parametrize("architectures", [None, [], "BertForSequenceClassification", [7], ["X"]])
def test_a_config_that_names_no_head(tmp_path, architectures):
    exported(tmp_path, "sequence_classification")
    edit_json(tmp_path / "hf" / "config.json", architectures=architectures)
    again = formats.read(tmp_path / "hf")
    assert not again.head and "classifier.weight" in " ".join(again.warnings)


def test_its_encoder_can_be_pre_trained_on(tmp_path):
    """Read back by us, it is an encoder whose task's head is left out, with a warning."""
    pretrained = make_finetuned("sequence_classification", LABELS)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    again = formats.read(tmp_path / "hf")
    again.complete()
    assert f"the head of {tmp_path / 'hf'} is of a task, and is left out" in again.warnings
    assert not again.head and not again.labels
    for name in [name for name in weights if name.startswith("bert/")]:
        np.testing.assert_array_equal(again.weights[name], weights[name])
    assert same_weights(
        {n: x for n, x in again.weights.items() if n.startswith("bert/")},
        {n: x for n, x in weights.items() if n.startswith("bert/")},
    )


@pytest.mark.parametrize("kind", ["google", "bert_jax"])
def test_kinds_that_have_no_place_for_it(tmp_path, kind):
    pretrained = make_finetuned("sequence_classification", LABELS)
    with pytest.raises(UserError, match="a test is fine-tuned.*--to=huggingface"):
        formats.write(pretrained, tmp_path / "out", kind)
    assert not (tmp_path / "out").exists()


def test_features_have_no_class(tmp_path):
    pretrained = make_finetuned("sequence_classification", LABELS)
    pretrained.features = (-1, -2)
    with pytest.raises(UserError, match="config.train.features.*no class of transformers"):
        formats.write(pretrained, tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()


def test_pre_trainings_heads_take_the_place_of_the_tasks():
    pretrained = make_finetuned("token_classification", LABELS)
    pretrained.complete()
    assert not pretrained.head and not pretrained.labels
    assert not [name for name in pretrained.weights if name.startswith("classifier/")]
    assert {name.split("/")[0] for name in pretrained.weights} == {"bert", "mlm", "nsp"}
    assert "the head of a test is of a task, and is left out" in pretrained.warnings
