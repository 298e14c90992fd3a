"""Fine-tuned models in the format of `transformers`, without `transformers`."""

import functools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.base.errors import UserError
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from tests.golden.inputs import read_golden, section
from tests.interop.small_bert import (
    HEADS,
    LABELS,
    MODEL,
    copies,
    edit_json,
    edit_tensors,
    make_finetuned,
    same_weights,
)


def export(pretrained, path):
    formats.write(pretrained, path, "huggingface")
    config = json.loads((path / "config.json").read_text())
    return config, load_file(path / "model.safetensors")


def test_a_classifier_and_its_labels(tmp_path):
    pretrained = make_finetuned("sequence_classification", LABELS)
    ours = copies(pretrained.weights)
    config, tensors = export(pretrained, tmp_path / "hf")
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    assert config["problem_type"] == "single_label_classification"
    np.testing.assert_array_equal(tensors["classifier.weight"], ours["classifier/dense/kernel"].T)
    assert not [name for name in tensors if name.startswith("cls.")]
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card and "no, perhaps, yes" in card


def test_other_heads(tmp_path):
    config, tensors = export(make_finetuned("sequence_classification"), tmp_path / "regression")
    assert config["problem_type"] == "regression" and len(config["id2label"]) == 1
    assert tensors["classifier.weight"].shape == (1, 12)
    config, tensors = export(make_finetuned("question_answering"), tmp_path / "spans")
    assert config["architectures"] == ["BertForQuestionAnswering"] and "id2label" not in config
    assert tensors["qa_outputs.weight"].shape == (2, 12)
    assert not [name for name in tensors if "pooler" in name]
    flaubert = make_finetuned("sequence_classification", LABELS, family="flaubert")
    config, _ = export(flaubert, tmp_path / "flaubert")
    assert config["architectures"] == ["FlaubertForSequenceClassification"]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
@pytest.mark.parametrize(("head", "labels"), HEADS)
def test_reading_inverts_writing(tmp_path, head, labels, family):
    pretrained = make_finetuned(head, labels, family=family)
    pretrained.multi_label = is_multi = head == "sequence_classification" and bool(labels)
    weights = copies(pretrained.weights)
    first = export(pretrained, tmp_path / "hf")
    again = formats.read(tmp_path / "hf")
    assert (again.head, again.labels, again.multi_label) == (head, labels, is_multi)
    assert same_weights(again.weights, weights) and again.warnings == []
    second = export(again, tmp_path / "twice")
    assert first[0] == second[0] and same_weights(first[1], second[1])


def test_roberta_classifier_contains_the_pooler(tmp_path):
    pretrained = make_finetuned("sequence_classification", LABELS, family="roberta")
    dense = copies(pretrained.weights)["bert/pooler/dense/kernel"]
    config, tensors = export(pretrained, tmp_path / "hf")
    assert config["architectures"] == ["RobertaForSequenceClassification"]
    np.testing.assert_array_equal(tensors["classifier.dense.weight"], dense.T)
    assert tensors["classifier.out_proj.weight"].shape == (3, 12)
    assert not [name for name in tensors if "pooler" in name]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        # transformers does not write its default values.
        ({"id2label": None, "problem_type": None}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"id2label": {"2": "c", "0": "a", "1": 7}}, ("a", "7", "c")),
    ],
)
def test_labels_in_the_forms_of_transformers(tmp_path, values, labels):
    export(make_finetuned("sequence_classification", LABELS), tmp_path / "hf")
    edit_json(tmp_path / "hf" / "config.json", **values)
    again = formats.read(tmp_path / "hf")
    assert again.labels == labels and not again.warnings and not again.multi_label


@pytest.mark.parametrize(
    ("head", "values", "lost", "words"),
    [
        ("sequence_classification", {}, "classifier.", "has no classifier.weight, classifier.bias"),
        ("sequence_classification", {}, "bert.pooler.", "has no bert.pooler.dense.weight"),
        ("sequence_classification", {"problem_type": "regression"}, "", "3 numbers at once"),
        ("sequence_classification", {"is_decoder": True}, "", "pools the first token"),
        ("token_classification", {"id2label": {"0": "a"}}, "", "does not name the 3 labels"),
    ],
)
def test_encoder_is_read_without_an_unusable_head(tmp_path, head, values, lost, words):
    export(make_finetuned(head, LABELS), tmp_path / "hf")
    edit_json(tmp_path / "hf" / "config.json", **values)
    if lost:
        edit_tensors(tmp_path / "hf", lambda t: [t.pop(n) for n in list(t) if n.startswith(lost)])
    again = formats.read(tmp_path / "hf")
    assert not again.head and not again.labels
    assert not [name for name in again.weights if not name.startswith("bert/")]
    assert words in " ".join(again.warnings) and "without its head" in " ".join(again.warnings)


def test_a_config_without_a_known_head(tmp_path):
    export(make_finetuned("sequence_classification", LABELS), tmp_path / "hf")
    for architectures in (None, [], ["X"]):
        edit_json(tmp_path / "hf" / "config.json", architectures=architectures)
        again = formats.read(tmp_path / "hf")
        assert not again.head and "classifier.weight" in " ".join(again.warnings)


def test_pre_training_replaces_the_head():
    pretrained = make_finetuned("token_classification", LABELS)
    encoder = {n: x for n, x in copies(pretrained.weights).items() if n.startswith("bert/")}
    pretrained.complete()
    assert not pretrained.head and not pretrained.labels
    assert {name.split("/")[0] for name in pretrained.weights} == {"bert", "mlm", "nsp"}
    assert "the task head of a test is left out" in pretrained.warnings
    assert same_weights({name: pretrained.weights[name] for name in encoder}, encoder)


@pytest.mark.parametrize(
    "name",
    [
        "BartForSequenceClassification",
        pytest.param("BartForQuestionAnswering", marks=pytest.mark.slow),
    ],
)
def test_logits_of_a_bart_with_a_head_are_those_of_transformers(name, tmp_path):
    golden, path = read_golden("bart_heads"), tmp_path / "hf"
    path.mkdir()
    tensors = section(golden, "weights") | section(golden, f"{name}/weights")
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads(str(golden["config"])) | {"num_labels": 3}
    config |= {"model_type": "bart", "architectures": [name]}
    (path / "config.json").write_text(json.dumps(config))
    pretrained = formats.read(path)
    model = load_head(pretrained.head).make_model(pretrained.model_config, len(pretrained.labels))
    params = unflatten(pretrained.weights, pretrained.model_config)
    batch = section(golden, "inputs")
    batch["token_type_ids"] = np.zeros_like(batch["input_ids"])
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    outputs = apply({"params": params}, batch)
    real = batch["attention_mask"] > 0
    for output, found in outputs.items():
        expected = golden[f"{name}/{output}"]
        if found.ndim == 2 and found.shape == real.shape:
            found, expected = found[real], expected[real]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "again", "huggingface")
    assert same_weights(formats.read(tmp_path / "again").weights, weights)


def test_a_causal_model_without_a_class_in_transformers_is_refused(tmp_path):
    pretrained = make_finetuned("sequence_classification", LABELS)
    pretrained.model = MODEL | {"causal": True}
    with pytest.raises(UserError, match="causal and pools the last token"):
        formats.write(pretrained, tmp_path / "out", "huggingface")
