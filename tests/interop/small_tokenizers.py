"""Small tokenizers, trained quickly on real text."""

from tests.tokenizers import test_tokenizers

SCRIPTS = ["Café naïve ÉLAN 東京 中国力 Ελλάδα привет שלום مرحبا हिन्दी 한국어 ﬁ ½ １２３"] * 5


def train(kind, lowercase, max_chars=150):
    texts = test_tokenizers.sample_texts(10) + SCRIPTS
    return test_tokenizers.train(kind, texts, 900, lowercase=lowercase, max_chars=max_chars)
