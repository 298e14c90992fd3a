"""Small tokenizers, trained quickly on real text."""

import json

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from bert_jax.tokenizers import CONVENTIONS
from bert_jax.tokenizers.bpe import content_of
from bert_jax.tokenizers.factory import load_kind
from tests.tokenizers import test_tokenizers

SCRIPTS = ["Café naïve ÉLAN 東京 中国力 Ελλάδα привет שלום مرحبا हिन्दी 한국어 ﬁ ½ １２３"] * 5


def train(kind, lowercase, max_chars=150):
    texts = test_tokenizers.sample_texts(10) + SCRIPTS
    return test_tokenizers.train(kind, texts, 900, lowercase=lowercase, max_chars=max_chars)


def gemma_like():
    """A small tokenizer of the library with Gemma 2's rules: "▁", bytes and runs of line breaks."""
    specials, runs = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], ["\n\n", "\n", "<b>"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    theirs = tokenizers.Tokenizer(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True, dropout=None)
    )
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    theirs.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[*specials, *runs, *pieces], show_progress=False
    )
    theirs.train_from_iterator(test_tokenizers.sample_texts(10), trainer)
    content = json.loads(theirs.to_str())
    added = {token["content"]: token for token in content["added_tokens"]}
    content["added_tokens"] = [added[t] | {"special": t in specials} for t in [*specials, *runs]]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<eos>", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            token: {"id": token, "ids": [i], "tokens": [token]}
            for i, token in enumerate(specials)
            if token in ("<bos>", "<eos>")
        },
    }
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def modernbert_like(roberta):
    """A tokenizer with RoBERTa's merges and ModernBERT's rules."""
    special = CONVENTIONS["modernbert"]
    own = [token for token in roberta.tokens if token not in roberta.special_tokens.names]
    content = content_of("byte_bpe", [*own, *special.last], roberta.merges, special, composes=True)
    return load_kind("byte_bpe").tokenizer(content, special_tokens=special, add_prefix_space=False)


# Llama 3's words: contractions in any case, and at most three digits.
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def llama_like():
    """A small tokenizer of the library with EuroBERT's rules, which are Llama 3's."""
    theirs = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    theirs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator(test_tokenizers.sample_texts(10), trainer)
    special = CONVENTIONS["eurobert"]
    theirs.add_special_tokens(
        [
            tokenizers.AddedToken(token, lstrip=token == special.mask, special=True)
            for token in (*special.last, "<|reserved_special_token_0|>")
        ]
    )
    ids = {token: theirs.token_to_id(token) for token in (special.cls, special.sep)}
    theirs.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{special.cls} $A {special.sep}", special_tokens=list(ids.items())
    )
    return theirs
