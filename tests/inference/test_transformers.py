"""The same questions put to `transformers`; skipped where it is not installed.

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
    # Elsewhere "[MASK]" is plain text here, as it is in training.
    pair = ("the bad cab.", "a dead face")
    with torch.no_grad():
        theirs = model(**tokenizer(*pair, return_tensors="pt"))
    probability = theirs.seq_relationship_logits.softmax(-1)[0, 0].item()
    assert bert.next_sentence(*pair) == pytest.approx(probability, abs=1e-5)
    (states,) = bert.encode([pair], pooling="tokens", layers=range(4))
    np.testing.assert_allclose(
        states.swapaxes(0, 1), torch.stack(theirs.hidden_states)[:, 0].numpy(), atol=1e-4
    )
