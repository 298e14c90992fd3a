"""Compares predictions with those of `transformers`; skipped if it is not installed.

pip install torch 'transformers<5' && pytest tests/inference/test_transformers.py
"""

import numpy as np
import pytest

import bert_jax
from bert_jax.interop import formats
from tests.interop.small_bert import make_pretrained

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["a [MASK] c.", "The [MASK] of [MASK], bad [MASK]!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "hf"
    formats.write(make_pretrained(), path, "huggingface")
    return path


@pytest.fixture(scope="module")
def bert(folder):
    return bert_jax.load(folder)


def test_fill_mask(folder, bert):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits[batch["input_ids"] == tokenizer.mask_token_id]
        best = logits.softmax(-1).topk(7)
        ours = bert.fill_mask(text, top_k=7)
        assert [[guess.token for guess in mask] for mask in ours] == [
            tokenizer.convert_ids_to_tokens(ids) for ids in best.indices
        ]
        probabilities = [[guess.probability for guess in mask] for mask in ours]
        np.testing.assert_allclose(probabilities, best.values.numpy(), atol=1e-5)


def test_next_sentence_features_and_attention(folder, bert):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForPreTraining.from_pretrained(
        folder, attn_implementation="eager", output_hidden_states=True, output_attentions=True
    ).eval()
    pair = ("the bad cab.", "a dead [MASK] faced it")
    with torch.no_grad():
        theirs = model(**tokenizer(*pair, return_tensors="pt"))
    view = bert.attention(*pair)
    np.testing.assert_allclose(
        view.probabilities_NxAxLxL, torch.stack(theirs.attentions)[:, 0].numpy(), atol=1e-5
    )
    # In all other methods of bert_jax, "[MASK]" is plain text, as in training.
    pair = ("the bad cab.", "a dead face")
    with torch.no_grad():
        theirs = model(**tokenizer(*pair, return_tensors="pt"))
    probability = theirs.seq_relationship_logits.softmax(-1)[0, 0].item()
    assert bert.next_sentence(*pair) == pytest.approx(probability, abs=1e-5)
    (states,) = bert.encode([pair], pooling="tokens", layers=range(4))
    np.testing.assert_allclose(
        states.swapaxes(0, 1), torch.stack(theirs.hidden_states)[:, 0].numpy(), atol=1e-4
    )


LABELS = ("no", "perhaps", "yes")


def saved(tmp_path, name, **config):
    """Returns a model with random weights that transformers saved, and its tokenizer."""
    formats.write(make_pretrained(), tmp_path / "pretrained", "huggingface")
    torch.manual_seed(0)
    model = getattr(transformers, name).from_pretrained(tmp_path / "pretrained", **config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "pretrained")
    tokenizer.save_pretrained(tmp_path / "saved")

    def logits(*texts):
        with torch.no_grad():
            return model(**tokenizer(*texts, return_tensors="pt", padding=True))

    return bert_jax.load(tmp_path / "saved"), logits


PAIR = ("the bad cab.", "a dead face")


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"num_labels": 2}, ("LABEL_0", "LABEL_1")),
        ({"id2label": dict(enumerate(LABELS))}, LABELS),
    ],
)
def test_classes(tmp_path, config, labels):
    bert, logits = saved(tmp_path, "BertForSequenceClassification", **config)
    expected = logits(*PAIR).logits[0].softmax(-1).numpy()
    found = bert.classify(*PAIR)
    assert [x.label for x in found] == [labels[i] for i in np.argsort(-expected)]
    np.testing.assert_allclose([x.probability for x in found], -np.sort(-expected), atol=1e-4)


def test_regression_and_multi_label(tmp_path):
    bert, logits = saved(tmp_path / "a", "BertForSequenceClassification", num_labels=1)
    assert bert.classify(PAIR[0]) == pytest.approx(logits(PAIR[0]).logits.item(), abs=1e-3)
    kind = {"id2label": dict(enumerate(LABELS)), "problem_type": "multi_label_classification"}
    bert, logits = saved(tmp_path / "b", "BertForSequenceClassification", **kind)
    expected = logits(*PAIR).logits[0].sigmoid().numpy()
    for label, probability in bert.classify(*PAIR):
        assert probability == pytest.approx(expected[LABELS.index(label)], abs=1e-4)
