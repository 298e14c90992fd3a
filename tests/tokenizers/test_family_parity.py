"""The family's tokenizers against recorded ids of `transformers`.

tests/golden/record_family_tokenization.py recorded them; see its docstring.
"""

import gzip
import json
import zipfile

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.tokenizers import CONVENTIONS
from tests.golden.record_family_tokenization import CLASSES, MASKED, PAIR, SAME
from tests.tokenizers.test_parity import GOLDEN

ALBERT = {"sentencepiece_rules": "albert", "special_tokens": CONVENTIONS["albert"]}
# The arguments of `tokenizers.from_file`.
OURS = {
    "roberta": ("byte_bpe", {}),
    "roberta_prefix": ("byte_bpe", {"add_prefix_space": True}),
    "xlm_roberta": ("sentencepiece", {}),
    "camembert": ("sentencepiece", {"special_tokens": CONVENTIONS["camembert"]}),
    "albert": ("sentencepiece", {"lowercase": True, **ALBERT}),
    "albert_cased": ("sentencepiece", ALBERT),
    "phobert": ("fastbpe", {}),
}


@pytest.fixture(scope="module")
def golden():
    return json.loads(gzip.decompress((GOLDEN / "family_tokenization.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    zipfile.ZipFile(GOLDEN / "family_tokenizers.zip").extractall(folder)
    return folder


@pytest.fixture(scope="module", params=CLASSES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def tokenizer(name, models):
    kind, options = OURS[name]
    options = {"special_tokens": CONVENTIONS["roberta"]} | options
    return tokenizers.from_file(kind, models / SAME.get(name, name), **options)


def test_the_ids_are_those_of_transformers(tokenizer, name, golden):
    # PhobertTokenizer makes <unk> of a line break. AlbertTokenizer lower-cases each character by
    # itself, and before NFKD; its authors' program does it as ours.
    exceptions = {"phobert": "\n", "albert": "Σ\u03f9"}.get(name, "")
    wrong, num_compared = [], 0
    ours = tokenizer.encode_batch(golden["texts"])
    for text, ids, theirs in zip(golden["texts"], ours, golden["runs"][name]["ids"], strict=True):
        if theirs is None or set(text) & set(exceptions):
            continue
        num_compared += 1
        if ids.tolist() != theirs:
            wrong.append((text, ids.tolist(), theirs))
    assert not wrong, (len(wrong), wrong[:5])
    assert num_compared > 700
    assert len(tokenizer.tokens) == len(golden["runs"][name]["tokens"])


def test_masks_and_pairs_are_those_of_transformers(tokenizer, name, golden):
    recorded, mask = golden["runs"][name], tokenizer.special_tokens.mask
    for text, theirs in zip(MASKED, recorded["masked"], strict=True):
        ids = tokenizer.encode_masked(text.replace("{}", mask))
        assert tokenizer.join(ids).input_ids_L.tolist() == theirs, text
    row = tokenizer.join(*tokenizer.encode_batch(PAIR))
    assert row.input_ids_L.tolist() == recorded["pair"]
    assert row.token_type_ids_L.tolist() == recorded["types"]


def test_every_piece_has_its_place(tokenizer, golden):
    for text in golden["texts"]:
        ids, spans = tokenizer.encode_aligned(text)
        assert ids.tolist() == tokenizer.encode_batch([text])[0].tolist()
        assert spans.shape == (len(ids), 2) and (np.diff(spans, axis=0) >= 0).all()
        assert not len(ids) or (0 <= spans[0, 0] and spans[-1, 1] <= len(text))
    text = "The Senate, of the House"
    ids, spans = tokenizer.encode_aligned(text)
    assert (spans[:, 0] < spans[:, 1]).all()
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == {i for i, character in enumerate(text) if character != " "}


def test_they_survive_saving(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.tokens == tokenizer.tokens and again.options == tokenizer.options
