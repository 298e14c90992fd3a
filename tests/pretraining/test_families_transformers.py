"""Runs of CamemBERT, PhoBERT and XLM-R, exported and loaded by `transformers`."""

import numpy as np
import pytest

from bert_jax.commands.pretrain import pretrain
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from tests.pretraining.test_families import config_of

pytestmark = pytest.mark.outside
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["The quick brown fox saw the old man.", "It was a good day, Ébahi !", "jumps over"]


@pytest.mark.parametrize("name", ["camembert", "phobert", "xlmr"])
def test_ids_and_logits_equal_those_of_transformers(name, texts, tmp_path):
    pretrain(config_of(name, texts), tmp_path / "run")
    convert(str(tmp_path / "run"), str(tmp_path / "hf"), "huggingface")
    ours = formats.read(tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    assert [x.tolist() for x in ours.tokenizer.encode_batch(TEXTS)] == ids

    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**batch).logits.numpy()
    ids_BxL, mask_BxL = batch["input_ids"].numpy(), batch["attention_mask"].numpy()
    positions = np.tile(np.arange(ids_BxL.shape[1]), (len(TEXTS), 1))
    found = PreTrainingModel(ours.model_config, make_terms(ours.terms)).apply(
        {"params": unflatten(ours.weights, ours.model_config)},
        {
            "input_ids": ids_BxL,
            "attention_mask": mask_BxL,
            "token_type_ids": np.zeros_like(ids_BxL),
            "masked_lm_positions": positions,
            "masked_lm_ids": positions,
            "masked_lm_weights": np.zeros(positions.shape, np.float32),
        },
        deterministic=True,
    )["mlm"][..., : ours.model_config.vocab_size]
    is_real = mask_BxL.astype(bool)
    np.testing.assert_allclose(found[is_real], expected[is_real], atol=1e-4)
