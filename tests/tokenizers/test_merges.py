"""Vocabularies of counted words, compared with those of the `tokenizers` library."""

import json
import random
from collections import Counter

import pytest
import tokenizers as library
from tokenizers import models, pre_tokenizers, trainers

from bert_jax import tokenizers
from bert_jax.text.sources import built_in_files
from bert_jax.tokenizers.factory import training_words_of
from bert_jax.tokenizers.merges import MIN_FREQUENCY, learn_merges
from bert_jax.tokenizers.training_words import without_long_runs


@pytest.mark.parametrize("seed", range(20))
def test_merges_are_those_of_the_library(seed):
    """Two letters give many ties, repeated letters, and tokens that form in several ways."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("ab", k=rng.randint(1, 12))) for _ in range(60)]
    backend = library.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=90, min_frequency=MIN_FREQUENCY, show_progress=False)
    backend.train_from_iterator([" ".join(words)], trainer)
    tokens = ["a", "b"]
    counts = sorted(Counter(words).items())
    merges = learn_merges(((["ab".index(c) for c in w], n) for w, n in counts), tokens, 90)
    assert [list(m) for m in merges] == json.loads(backend.to_str())["model"]["merges"]
    assert dict(zip(tokens, range(90), strict=False)) == backend.get_vocab()


RARE = ["naïve café, don't stop", "中文 and ☃snow☃men", "  two  spaces\tand a tab ", "x" * 450]


@pytest.mark.parametrize(
    "kind, size, options",
    [
        ("wordpiece", 3000, {"lowercase": True}),
        ("wordpiece", 700, {"lowercase": False, "max_input_chars_per_word": 9}),
        ("wordpiece", 40_000, {"lowercase": True}),
        ("byte_bpe", 3000, {"add_prefix_space": False}),
        ("byte_bpe", 600, {"add_prefix_space": True}),
        ("byte_bpe", 40_000, {"add_prefix_space": False}),
    ],
)
@pytest.mark.parametrize("convention", ["bert", "roberta"])
def test_tokens_are_those_of_the_library(kind, size, options, convention):
    texts = [line for file in built_in_files()[:12] for line in file.read_text("utf-8").split("\n")]
    texts = [*texts, *RARE, *RARE]
    special = tokenizers.CONVENTIONS[convention]
    ours = tokenizers.train(kind, texts, vocab_size=size, special_tokens=special, **options)
    words = {"vocab_size": size - len(special.last), "min_frequency": MIN_FREQUENCY}
    if kind == "wordpiece":
        # The library breaks ties by id. As special tokens, the pieces of characters have our ids.
        base = [t for t in ours.tokens if t in special.first or len(t.removeprefix("##")) == 1]
        letters = [token for token in base if len(token) == 1]
        trainer = trainers.WordPieceTrainer(
            special_tokens=base, initial_alphabet=letters, limit_alphabet=len(letters), **words
        )
        backend = library.Tokenizer(models.WordPiece(unk_token=special.unk))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words_of = training_words_of(kind, **options)
        texts = [" ".join(words_of(text)) for text in texts]
    else:
        trainer = trainers.BpeTrainer(
            special_tokens=list(special.first),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            **words,
        )
        backend = library.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
        texts = [part for text in texts for part in without_long_runs(text)]
    backend.train_from_iterator(texts, trainer)
    ids = backend.get_vocab()
    theirs = sorted(ids, key=ids.get)[: words["vocab_size"]]
    assert ours.tokens[: len(theirs)] == theirs and len(theirs) > len(special.first) + 256
    if kind == "byte_bpe":
        found = json.loads(backend.to_str())["model"]["merges"]
        assert [list(pair) for pair in ours.merges] == found
