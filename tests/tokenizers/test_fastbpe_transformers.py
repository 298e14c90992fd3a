"""Vocabularies of fastBPE that are trained here, read by `PhobertTokenizer` of `transformers`."""

import pytest

from bert_jax.tokenizers import CONVENTIONS
from tests.tokenizers.test_tokenizers import train

pytestmark = pytest.mark.outside
transformers = pytest.importorskip("transformers")

# Divided into words as VnCoreNLP does.
VIETNAMESE = [
    "Tôi là sinh_viên trường đại_học Công_nghệ .",
    "Ông Nguyễn_Khắc_Chúc đang làm_việc tại Đại_học Quốc_gia Hà_Nội .",
    "Bà Lan , vợ ông Chúc , cũng làm_việc tại đây .",
    "Chúng_tôi là những nghiên_cứu_viên .",
]
TEXTS = [
    *VIETNAMESE,
    "Sinh_viên Quốc_gia đang nghiên_cứu ở Huế ?",
    "Lan là  sinh_viên đại_học",
    "xyz 123 …",
]


@pytest.mark.parametrize("size", [130, 400])
def test_ids_equal_those_of_phobert_tokenizer(size, tmp_path):
    ours = train("fastbpe", VIETNAMESE * 2, size, special_tokens=CONVENTIONS["roberta"])
    ours.save(tmp_path)
    theirs = transformers.PhobertTokenizer(f"{tmp_path}/vocab.txt", f"{tmp_path}/bpe.codes")
    assert len(theirs) == ours.vocab_size == size
    assert theirs.mask_token_id == ours.mask_id == size - 1
    for text, ids in zip(TEXTS, ours.encode_batch(TEXTS), strict=True):
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False), text
