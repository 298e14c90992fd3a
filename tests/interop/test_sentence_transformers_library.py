"""Directories of sentence-transformers in the library itself, and what it saves here."""

import numpy as np
import pytest

import bert_jax
from bert_jax import convert
from bert_jax.interop import formats
from bert_jax.interop.families import FAMILIES
from bert_jax.tokenizers import CONVENTIONS, from_file
from bert_jax.tokenizers.protein import ESM_TOKENS, ProteinTokenizer
from tests.golden.inputs import real_package
from tests.interop.small_bert import make_pretrained
from tests.interop.small_tokenizers import llama_like, modernbert_like
from tests.tokenizers.test_family_parity import read, unpack

pytestmark = pytest.mark.outside
library = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

TEXTS = ["Café prices rose 4.5 % in 2019. " * 9, "", "The people, are free.", "東京 naïve"]
PROTEINS = ["MKTAYIAKQRQISFVK" * 3, "M", "ACDEFGHIKL", "MKXBUZ"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """The tokenizers of families that have not BERT's."""
    models = unpack(tmp_path_factory.mktemp("models"))
    names = ("roberta", "xlm_roberta", "camembert", "albert", "flaubert")
    made = {name: read(name, models) for name in names}
    made["modernbert"] = modernbert_like(made["roberta"])
    made["gte"] = made["jina_v3"] = made["xlm_roberta"]
    llama_like().save(str(models / "llama.json"))
    special = CONVENTIONS["eurobert"]
    made["eurobert"] = from_file("tokenizer_json", models / "llama.json", special_tokens=special)
    made["esm"] = ProteinTokenizer(ESM_TOKENS, special_tokens=CONVENTIONS["esm"])
    tokens = ["|" if token == "<null_1>" else token for token in ESM_TOKENS]
    made["esmc"] = ProteinTokenizer(tokens, special_tokens=CONVENTIONS["esm"])
    return made


@pytest.mark.parametrize(
    ("family", "pooling"),
    [
        ("bert", "cls"),
        *((name, "mean") for name in FAMILIES if name not in ("bart", "spanbert", "herbert")),
    ],
)
def test_what_the_library_made_and_saved_gives_the_same_vectors(
    family, pooling, tokenizers, tmp_path
):
    """Its parts are put together by hand, as its users do for a new model."""
    tokenizer = tokenizers.get(family)
    size = {"vocab_size": tokenizer.vocab_size} if tokenizer else {}
    pretrained = make_pretrained(family=family, **size)
    pretrained.tokenizer = tokenizer or pretrained.tokenizer
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    encoder = modules.Transformer(str(tmp_path / "hf"), max_seq_length=24)
    pool = modules.Pooling(12, pooling_mode=pooling, include_prompt=False)
    theirs = library.SentenceTransformer(modules=[encoder, pool, modules.Normalize()], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    texts = PROTEINS if family in ("esm", "esmc") else TEXTS
    convert.convert(str(tmp_path / "theirs"), str(tmp_path / "again"), "sentence_transformers")
    again = library.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    ours = bert_jax.load(tmp_path / "theirs")
    for prompt in ("", "MKT" if texts is PROTEINS else "Ask: "):
        expected = theirs.encode(texts, prompt=prompt)
        assert np.abs(expected[0] - expected[2]).max() > 1e-4
        with pytest.warns(UserWarning, match="1 of 4 texts are truncated to 24 tokens"):
            found = ours.encode(texts, prompt=prompt)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(again.encode(texts, prompt=prompt), expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_library_computes_the_same_vectors(tmp_path, pooling):
    source, out = real_package("minilm"), str(tmp_path / "st")
    settings = {"pooling": pooling, "normalize": pooling == "mean", "max_length": 32}
    convert.convert(str(source), out, "sentence_transformers", **settings)
    texts = ["BERT reads both sides.", "", "Café prices rose 4.5 % in 2019. " * 9, "東京 naïve"]
    model = library.SentenceTransformer(out, device="cpu")
    assert model.max_seq_length == 32
    with pytest.warns(UserWarning, match="1 of 4 texts are truncated to 32 tokens"):
        ours = bert_jax.load(out).encode(texts)
    np.testing.assert_allclose(ours, model.encode(texts), atol=1e-5)


def test_the_library_has_the_same_prompts_and_dimension(tmp_path):
    out, texts = str(tmp_path / "st"), ["BERT reads both sides.", "Who reads?"]
    settings = {"normalize": True, "dimension": 128, "query_prompt": "Ask: "}
    convert.convert(str(real_package("minilm")), out, "sentence_transformers", **settings)
    theirs, ours = library.SentenceTransformer(out, device="cpu"), bert_jax.load(out)
    for name, embedding in (
        ("encode_query", ours.embedding.for_queries()),
        ("encode_document", ours.embedding.for_documents()),
        ("encode", ours.embedding),
    ):
        found = ours.encode(texts, prompt=embedding.prompt)
        np.testing.assert_allclose(found, getattr(theirs, name)(texts), atol=3e-7)
    theirs.save(str(tmp_path / "again"))
    assert bert_jax.load(tmp_path / "again").embedding.prompts["query"] == "Ask: "
