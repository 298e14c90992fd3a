"""Whole words of segmented Chinese text, in which spaces mark the word boundaries."""

import dataclasses

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.commands.complete_config import complete_config
from bert_jax.config import default_config
from bert_jax.config.command_line import ConfigSource
from bert_jax.store.token_store import TokenStore
from tests.stores import make, options

CHARACTERS = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可"
)
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPEC = StreamSpec.of(
    default_config().data,
    max_seq_length=48,
    max_predictions_per_seq=12,
    batch_size=8,
    seed=0,
    stage=0,
    rows="segments",
    whole_word_masking=True,
)


def segmented_documents():
    """Returns 20 documents of 15 sentences with words of one to four characters."""
    rng = np.random.default_rng(0)
    return [
        [
            ["".join(rng.choice(list(CHARACTERS), rng.integers(1, 5))) for _ in range(8)]
            for _ in range(15)
        ]
        for _ in range(20)
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Returns the directory of two stores of the same text, with and without word-start bits."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "vocab.txt").write_text("\n".join((*SPECIALS, *CHARACTERS)) + "\n")
    documents = ["\n".join(" ".join(words) for words in text) for text in segmented_documents()]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    keys = {
        "format": "sentences",
        "vocab": str(folder / "vocab.txt"),
        "heldout_fraction": 0.0,
    }
    for name in ("spaces", "vocabulary"):
        data = options(folder / "text.txt", **keys, word_boundaries=name)
        make(data, folder / name, vocab_size=len(SPECIALS) + len(CHARACTERS))
    return folder


def masked_words(store, tokenizer, spec, num_steps=30):
    """Yields the original ids of each row, and the columns that were chosen."""
    stream = Stream(store, tokenizer, spec)
    for batch in stream.batches(0, num_steps):
        assert batch.keys() == stream.fields.keys()
        for row in range(len(batch["input_ids"])):
            weights = batch["masked_lm_weights"][row] > 0
            at = batch["masked_lm_positions"][row][weights]
            ids = batch["input_ids"][row].copy()
            ids[at] = batch["masked_lm_ids"][row][weights]
            yield ids, at


def test_bits_mark_the_starts_of_words(stores):
    plain, split = (TokenStore(stores / name / "train") for name in ("vocabulary", "spaces"))
    everything = np.arange(plain.num_tokens)
    assert np.array_equal(plain.tokens_at(everything), split.tokens_at(everything))
    words = [word for text in segmented_documents() for sentence in text for word in sentence]
    expected = [flag for word in words for flag in [True] + [False] * (len(word) - 1)]
    assert split.word_starts_at(everything).tolist() == expected
    assert split.has_words and not plain.has_words
    assert len(expected) % 8, "the test needs an incomplete last byte"


@pytest.mark.parametrize("rows", ["segments", "full_sentences"])
def test_whole_words_are_chosen(stores, rows):
    tokenizer = tokenizers.load(stores / "spaces" / "tokenizer")
    store = TokenStore(stores / "spaces" / "train")
    spec = dataclasses.replace(SPEC, rows=rows)
    cut = {
        "".join(words): np.cumsum([0, *map(len, words)])
        for text in segmented_documents()
        for words in text
    }
    assert len(cut) == 300  # No sentence occurs twice.
    num_long = 0
    for ids, at in masked_words(store, tokenizer, spec):
        text = "".join(tokenizer.tokens[i] if i > 4 else "\n" for i in ids)
        for sentence, bounds in cut.items():
            if (start := text.find(sentence)) >= 0:
                for first, stop in zip(bounds[:-1], bounds[1:], strict=True):
                    number = np.isin(np.arange(start + first, start + stop), at).sum()
                    assert number in (0, stop - first)
                    num_long += number > 1
    assert num_long > 100


def test_store_and_config_must_agree_on_word_boundaries(stores):
    for name in ("vocabulary", "spaces"):
        config = default_config()
        config.data.store = str(stores / name)
        completed, *_ = complete_config(config, stores, ConfigSource("x.py", config))
        assert completed.data.word_boundaries == name
    source = ConfigSource("x.py", config, frozenset({"data.word_boundaries"}))
    with pytest.raises(UserError, match="is 'vocabulary', but .* with 'spaces': set --config.data"):
        complete_config(config, stores, source)
