"""Hidden states and attention of long texts beside those that transformers computes."""

import numpy as np
import pytest

import bert_jax
from bert_jax.interop import formats
from tests.inference.test_long_texts import SIZES, TEXTS, text_of
from tests.interop.small_bert import make_pretrained

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.outside


@pytest.mark.parametrize("family", ["modernbert", "esm"])
def test_states_and_attention(tmp_path, family):
    """Alone, so that transformers has no padding; with our texts in one call."""
    pretrained = make_pretrained(family=family, **SIZES)
    # Random weights of this size let attention be less than all or nothing.
    pretrained.weights = {name: x * 0.3 for name, x in pretrained.weights.items()}
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    bert = bert_jax.load(tmp_path / "hf")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf", attn_implementation="eager")
    states = bert.encode(TEXTS, pooling="tokens", layers=range(3))
    for text, found_LxKxD in zip(TEXTS, states, strict=True):
        ids = torch.tensor(bert.rows([text])[0].input_ids_L[None].astype(np.int64))
        with torch.no_grad():
            theirs = model.eval()(ids, output_hidden_states=True, output_attentions=True)
        for k, expected in enumerate(theirs.hidden_states):
            np.testing.assert_allclose(found_LxKxD[:, k], expected[0], atol=2e-4)
        if text == text_of(513):
            for found, expected in zip(
                bert.attention(text).probabilities_NxAxLxL, theirs.attentions, strict=True
            ):
                np.testing.assert_allclose(found, expected[0], atol=1e-4)
