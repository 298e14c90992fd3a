"""Directories of sparse and multi-vector models, read and written without their libraries."""

import json
import shutil
import string
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.pretrained import PROJECTION, QUERY_WEIGHTS
from bert_jax.training import workdir
from tests.interop.small_bert import drop_tensors, edit_json, edit_tensors, same_weights
from tests.interop.vector_kinds import (
    MULTI_VECTOR_FORMS,
    RUNS,
    SPARSE_FORMS,
    colbert,
    encoded,
    inference_free,
    late_interaction,
    linear,
    pylate,
    run,
    splade,
    write_encoder,
    write_run,
)

FORMS = SPARSE_FORMS | MULTI_VECTOR_FORMS
# What sentence-transformers 6.2 computes of QUERIES and DOCUMENTS.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "vector_kinds.json").read_text())
SPARSE = Embedding("max", max_length=24, similarity="dot", kind="sparse")
STATIC = SPARSE._replace(double_log=True, static_queries=True)
MASKED = Embedding(
    "tokens",
    max_length=20,
    similarity="maxsim",
    kind="multi_vector",
    query_length=16,
    expansion="masked",
    skip_words=(".", ",", ";"),
)
PUNCTUATION = tuple(string.punctuation)
PYLATE = MASKED._replace(skip_words=PUNCTUATION)
SETTINGS = {
    "splade": SPARSE,
    "sum": SPARSE._replace(pooling="sum", double_log=True),
    "version_6": SPARSE,
    "inference_free": STATIC,
    "opensearch": STATIC,
    "masked": MASKED,
    "attended": MASKED._replace(expansion="attended", similarity="mean_maxsim"),
    "no_expansion": MASKED._replace(max_length=24, query_length=6, expansion="none"),
    "three_layers": MASKED,
    "pylate": PYLATE,
    "pylate_without_expansion": PYLATE._replace(expansion="none", skip_words=("the",)),
    "pylate_1": PYLATE._replace(expansion="attended"),
    "colbert": PYLATE._replace(max_length=70, query_length=32),
    "colbert_with_metadata": PYLATE._replace(expansion="attended", skip_words=()),
    "colbert_small": PYLATE,
}
PROMPTS = {
    "attended": ("the ", ""),
    "pylate": ("[Q] ", "[D] "),
    "pylate_without_expansion": ("[Q] a ", "[D] "),
    "pylate_1": ("[Q] ", "[D] "),
    "colbert": ("[unused0] ", "[unused1] "),
    "colbert_with_metadata": ("[unused1] ", "[unused0] "),
    "colbert_small": ("[unused0] ", "[unused1] "),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_and_written_again(form, tmp_path):
    path = FORMS[form](write_encoder(tmp_path / "first"))
    found = formats.read(path)
    assert found.embedding._replace(library={}) == SETTINGS[form]._replace(library={})
    queries, documents = found.embedding.for_queries(), found.embedding.for_documents()
    assert (queries.prompt, documents.prompt) == PROMPTS.get(form, ("", ""))
    is_sparse = found.embedding.kind == "sparse"
    assert (found.head, found.terms) == ("", ("masked_lm",) if is_sparse else ())
    assert formats.describe(path).embedding == found.embedding
    np.testing.assert_allclose(encoded(path)[-1], GOLDEN[form], rtol=1e-5)
    convert(str(path), str(tmp_path / "again"), "sentence_transformers")
    again = formats.read(tmp_path / "again")
    assert again.embedding == found.embedding
    assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
    kept = ("bert/", "projection/", "mlm/", "query_weights")[: 4 if is_sparse else 2]
    assert same_weights(
        again.weights, {name: x for name, x in found.weights.items() if name.startswith(kept)}
    )


def test_a_model_without_a_projection_has_the_states(tmp_path):
    path = late_interaction(write_encoder(tmp_path / "first"))
    modules = json.loads((path / "modules.json").read_text())
    kept = [module for module in modules if not module["type"].endswith("Dense")]
    (path / "modules.json").write_text(json.dumps(kept))
    np.testing.assert_array_equal(formats.read(path).weights["projection/kernel"], np.eye(12))


def test_weights_of_queries_by_their_tokens(tmp_path):
    """As OpenSearch writes them."""
    of_tensor, of_tokens = (
        formats.read(inference_free(write_encoder(tmp_path / form), form)).weights["query_weights"]
        for form in ("opensearch", "idf")
    )
    # The two added tokens are in no vocab.txt.
    np.testing.assert_array_equal(of_tokens, [*of_tensor[:-2], 0, 0])


def test_markers_of_colbert_are_one_token(tmp_path):
    paths = write_encoder(tmp_path / "plain"), colbert(write_encoder(tmp_path / "colbert"))
    plain, own = (formats.read(path).tokenizer for path in paths)
    (ids,) = own.encode_batch(["[unused0] a"])
    assert [own.tokens[i] for i in ids] == ["[unused0]", "a"]
    assert len(plain.encode_batch(["[unused0] a"])[0]) == 4


def test_what_is_not_as_in_the_library_is_said(tmp_path):
    path = pylate(write_encoder(tmp_path / "first"), similarity_fn_name="cosine", query_length=30)
    expansion = {"strategy": "min", "length": 16}
    edit_json(path / "sentence_bert_config.json", query_expansion=expansion)
    similarity, strategy, words = formats.read(path).warnings[-3:]
    assert "its similarity, cosine, is not supported: maxsim is used" in similarity
    assert "queries are cut to 16 tokens, whereas the strategy 'min'" in strategy
    assert 'its skip words " # $' in words and "not tokens of its vocabulary: ignored" in words
    warnings = formats.read(colbert(write_encoder(tmp_path / "second"))).warnings
    assert any("has no artifact.metadata: the defaults of ColBERT" in text for text in warnings)


def of_dense(config):
    return lambda path: late_interaction(path, dense=[(config, linear(8, 12))])


def with_module(make, kind):
    """Makes a model with one more module."""

    def changed(path):
        modules = json.loads((make(path) / "modules.json").read_text())
        modules.append({"path": "", "type": f"sentence_transformers.models.{kind}"})
        (path / "modules.json").write_text(json.dumps(modules))
        return path

    return changed


def expansion_with(**values):
    expansion = {"strategy": "fixed", "length": 16} | values
    return lambda path: late_interaction(path, {"query_expansion": expansion})


TANH = "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (of_dense({"bias": True}), "1_Dense: bias is True; it must be False"),
        (of_dense({"activation_function": TANH}), f"activation_function is '{TANH}'; it must be"),
        (with_module(pylate, "HierarchicalPooling"), "its module HierarchicalPooling is not supp"),
        (with_module(splade, "Normalize"), "its module Normalize is not supported in a sparse"),
        (
            lambda path: late_interaction(path, mask={"keep_only_token_ids": [3]}),
            r"keep_only_token_ids is \[3\]; it must be None",
        ),
        (
            lambda path: late_interaction(path, mask={"skiplist_tasks": ["query"]}),
            r"skiplist_tasks is \['query'\]; it must be \['document'\]",
        ),
        (
            expansion_with(token="[PAD]"),
            r"query_expansion: token is '\[PAD\]'; it must be '\[MASK\]'",
        ),
        (expansion_with(length=None), "is damaged or another program.s: TypeError"),
        (lambda path: splade(path, pooling_strategy="mean"), "pooling_strategy is 'mean'"),
        (lambda path: splade(path, activation_function="gelu"), "activation_function is 'gelu'"),
        (
            lambda path: splade(path, library={"max_active_dims": 9}),
            "max_active_dims is 9; it",
        ),
    ],
)
def test_what_is_refused(make, words, tmp_path):
    path = make(write_encoder(tmp_path / "first"))
    with pytest.raises(UserError, match=words) as error:
        formats.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_sparse_model_needs_its_masked_lm_head(tmp_path):
    path = splade(write_encoder(tmp_path / "first"))
    edit_tensors(path, lambda tensors: drop_tensors(tensors, "cls."))
    with pytest.raises(UserError, match="is a sparse model, but its weights have no masked-LM"):
        formats.read(path)
    assert formats.describe(path).embedding.kind == "sparse"


def test_a_copy_without_the_settings_of_the_pooling_is_refused(tmp_path):
    """Without them, weights whose logarithm is applied twice would have it once."""
    path = splade(write_encoder(tmp_path / "first"))
    shutil.rmtree(path / "1_SpladePooling")
    with pytest.raises(FileNotFoundError, match="1_SpladePooling/config.json"):
        formats.read(path)


def test_a_masked_lm_becomes_a_sparse_model_when_asked(tmp_path):
    source, out = str(write_encoder(tmp_path / "first")), str(tmp_path / "st")
    kind = "sentence_transformers"
    assert convert(source, out, kind, sparse=True, max_length=24) == []
    np.testing.assert_allclose(encoded(tmp_path / "st")[-1], GOLDEN["splade"], rtol=1e-5)
    with pytest.raises(UserError, match="--normalize is for dense embeddings, but .* is sparse"):
        convert(source, str(tmp_path / "no"), kind, sparse=True, normalize=True)
    encoder = str(late_interaction(write_encoder(tmp_path / "other")))
    with pytest.raises(UserError, match="--sparse is for a masked LM, but .* has no masked-LM"):
        convert(encoder, str(tmp_path / "no"), kind, sparse=True)


@pytest.mark.parametrize(
    ("make", "name", "lost"),
    [
        (splade, "BertForMaskedLM", ""),
        (inference_free, "BertForMaskedLM", "query_weights"),
        (pylate, "BertModel", "projection/kernel"),
    ],
)
def test_other_formats_have_the_encoder_and_say_what_is_lost(make, name, lost, tmp_path):
    path = make(write_encoder(tmp_path / "first"))
    weights = formats.read(path).weights
    kept = {n: x for n, x in weights.items() if n not in (PROJECTION, QUERY_WEIGHTS)}
    warnings = convert(str(path), str(tmp_path / "huggingface"), "huggingface")
    found = [text for text in warnings if "for vectors, is left out" in text]
    assert len(found) == bool(lost) and all(text.startswith(f"the {lost} of") for text in found)
    found = formats.read(tmp_path / "huggingface")
    assert found.embedding.kind == "dense"
    is_sparse = name.endswith("MaskedLM")
    prefixes = ("bert/", "mlm/")[: 1 + is_sparse]
    assert same_weights(found.weights, {n: x for n, x in kept.items() if n.startswith(prefixes)})
    config = json.loads((tmp_path / "huggingface" / "config.json").read_text())
    assert config["architectures"] == [name]
    if is_sparse:
        convert(str(path), str(tmp_path / "native"), "bert_jax")
        assert same_weights(formats.read(tmp_path / "native").weights, found.weights)
    else:
        with pytest.raises(UserError, match="is multi_vector; only --to=huggingface or sentence_t"):
            convert(str(path), str(tmp_path / "native"), "bert_jax")


@pytest.mark.filterwarnings("ignore:the text is truncated")
def test_queries_of_a_run_may_be_longer_than_its_documents(tmp_path):
    own = {"width": 8, "query_length": 30, "expansion": "none", "skip_punctuation": False}
    path = write_run(tmp_path / "run", "multi_vector", **own)
    # A run that has read its data.
    (path / workdir.CORPUS).write_text("{}")
    convert(str(path), str(tmp_path / "st"), "sentence_transformers")
    for directory in (path, tmp_path / "st"):
        bert = bert_jax.load(directory)
        long = [encode("a " * 40) for encode in (bert.encode_query, bert.encode_document)]
        assert [len(vectors) for vectors in long] == [30, 24]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_keeps_all_that_its_vectors_need(name, tmp_path):
    path = run(tmp_path / "run", name)
    ours = formats.read(path)
    assert convert(str(path), str(tmp_path / "st"), "sentence_transformers") == []
    theirs = formats.read(tmp_path / "st")
    assert theirs.embedding == ours.embedding and theirs.terms == ours.terms
    assert same_weights(theirs.weights, ours.weights)
    np.testing.assert_array_equal(encoded(path)[-1], encoded(tmp_path / "st")[-1])
