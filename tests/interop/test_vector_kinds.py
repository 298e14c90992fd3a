"""Directories of sparse and multi-vector models, read and written without their libraries."""

import json
import string
from pathlib import Path

import numpy as np
import pytest

from bert_jax.convert import convert
from bert_jax.interop import formats
from bert_jax.interop.embedding import Embedding
from tests.interop.small_bert import same_weights
from tests.interop.vector_kinds import (
    MULTI_VECTOR_FORMS,
    SPARSE_FORMS,
    scores,
    write_encoder,
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
    np.testing.assert_allclose(scores(path), GOLDEN[form], rtol=1e-5)
    convert(str(path), str(tmp_path / "again"), "sentence_transformers")
    again = formats.read(tmp_path / "again")
    assert again.embedding == found.embedding
    assert again.tokenizer.fingerprint == found.tokenizer.fingerprint
    kept = ("bert/", "projection/", "mlm/", "query_weights")[: 4 if is_sparse else 2]
    assert same_weights(
        again.weights, {name: x for name, x in found.weights.items() if name.startswith(kept)}
    )
