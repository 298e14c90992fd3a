"""The tokenizer of proteins."""

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.tokenizers import CONVENTIONS, from_file, load
from bert_jax.tokenizers.protein import ESM_TOKENS, ProteinTokenizer
from bert_jax.tokenizers.training import train

ESM = CONVENTIONS["esm"]


def test_each_letter_is_a_token(tmp_path):
    ours = ProteinTokenizer(ESM_TOKENS, special_tokens=ESM)
    assert ours.vocab_size == 33 and ours.special_ids == (1, 3, 0, 2, 32)
    # The ids of EsmTokenizer. White space means nothing, and unknown letters are one <unk>.
    (ids,) = ours.encode_batch(["MKT A"])
    assert ours.join(ids).input_ids_L.tolist() == [0, 20, 15, 11, 5, 2]
    assert ours.encode_batch(["MjjA", ""])[0].tolist() == [20, 3, 5]
    assert ours.encode_masked("M<mask>A").tolist() == [20, 32, 5]
    assert 32 not in ours.encode_batch(["M<mask>A"])[0]
    assert ours.is_word_start_V.all() and ours.decode([20, 15]) == "M K"
    np.testing.assert_array_equal(ours.encode_aligned("MK TA")[1][2], [3, 4])
    ours.save(tmp_path)
    assert (tmp_path / "vocab.txt").read_text().split() == ESM_TOKENS
    assert load(tmp_path).fingerprint == ours.fingerprint
    again = from_file("protein", tmp_path / "vocab.txt", special_tokens=ESM)
    assert again.fingerprint == ours.fingerprint


def test_text_does_not_change_the_vocabulary():
    assert train("protein", ["MKV"], vocab_size=33, special_tokens=ESM).tokens == ESM_TOKENS
    with pytest.raises(UserError, match="the vocabulary of proteins has 33 tokens; set --config"):
        train("protein", ["MKV"], vocab_size=64, special_tokens=ESM)
