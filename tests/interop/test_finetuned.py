"""Fine-tuned models on their way to other programs, without these programs."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop import formats
from tests.interop.small_bert import copies, make_finetuned, same_weights

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


def test_its_encoder_can_be_pre_trained_on(tmp_path):
    """Read back by us, it is an encoder whose task's head is left out, with a warning."""
    pretrained = make_finetuned("sequence_classification", LABELS)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    again = formats.read(tmp_path / "hf")
    again.complete()
    assert "classifier.weight" in " ".join(again.warnings)
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
