"""Small tokenizers, trained quickly on real text."""

from bert_jax import tokenizers
from bert_jax.text.corpus import built_in_files

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SCRIPTS = ["Café naïve ÉLAN 東京 中国力 Ελλάδα привет שלום مرحبا हिन्दी 한국어 ﬁ ½ １２３"] * 5


def sample_texts():
    return [line for f in built_in_files()[:10] for line in f.read_text("utf-8").split("\n")]


def train(kind, lowercase, max_chars=150):
    return tokenizers.train(
        "wordpiece" if kind == "wordpiece" else "sentencepiece",
        sample_texts() + SCRIPTS,
        vocab_size=900,
        lowercase=lowercase,
        max_input_chars_per_word=max_chars,
        sentencepiece_type=kind if kind != "wordpiece" else "unigram",
    )
