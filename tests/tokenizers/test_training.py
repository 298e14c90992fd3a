"""Training of vocabularies."""

import os
import subprocess
import sys
import unicodedata
from itertools import chain
from pathlib import Path

import pytest

from bert_jax.base.errors import UserError
from bert_jax.tokenizers import CONVENTIONS, from_file, load
from tests.tokenizers.test_tokenizers import sample_texts, train

# The special tokens of each kind.
TRAINED = {
    "wordpiece": "bert",
    "unigram": "bert",
    "bpe": "bert",
    "byte_bpe": "bert",
    "fastbpe": "roberta",
    "moses_bpe": "xlm",
    "bert_bpe": "herbert",
}
# Version 0.1 trained the same vocabularies by its own code.
FINGERPRINTS = {
    "wordpiece": "b9559d82afa0",
    "byte_bpe": "42ba2efa1686",
    "moses_bpe": "8c763dddacb0",
    "bert_bpe": "fe1b74af6eb5",
}
TRAIN = """
import sys
from bert_jax.tokenizers import CONVENTIONS
from tests.interop.small_tokenizers import SCRIPTS
from tests.tokenizers.test_tokenizers import sample_texts, train
for kind, convention in zip(sys.argv[2::2], sys.argv[3::2]):
    texts = [*sample_texts(6), *SCRIPTS]
    train(kind, texts, 900, special_tokens=CONVENTIONS[convention]).save(f"{sys.argv[1]}/{kind}")
"""


def test_training_gives_the_same_bytes_in_every_process(tmp_path):
    runs = []
    for threads in ("1", "4"):
        run = tmp_path / threads
        environment = os.environ | {"PYTHONHASHSEED": threads, "RAYON_NUM_THREADS": threads}
        command = [sys.executable, "-c", TRAIN, run, *chain.from_iterable(TRAINED.items())]
        subprocess.run(command, check=True, env=environment)
        paths = filter(Path.is_file, run.rglob("*"))
        runs.append({path.relative_to(run): path.read_bytes() for path in paths})
    assert runs[0] == runs[1]
    assert len({path.parent for path in runs[0]}) == len(TRAINED)
    found = {kind: load(tmp_path / "1" / kind).fingerprint[:12] for kind in FINGERPRINTS}
    assert found == FINGERPRINTS


def test_a_small_corpus_is_filled_up_with_unused_tokens():
    tokenizer = train("wordpiece", ["to be or not to be", "that is the question"], 1000)
    assert tokenizer.vocab_size == 1000
    assert 900 < tokenizer.num_unused < 1000
    assert tokenizer.id_to_token(999) == f"[unused{tokenizer.num_unused - 1}]"


@pytest.mark.parametrize("kind", ["fastbpe", "moses_bpe"])
def test_a_vocabulary_of_another_name_has_its_second_file_beside_it(kind, tmp_path):
    special = CONVENTIONS[TRAINED[kind]]
    tokenizer = train(kind, sample_texts(2), 200, special_tokens=special)
    tokenizer.save(tmp_path)
    vocabulary, second = tokenizer.vocabulary_files
    (tmp_path / vocabulary).rename(tmp_path / "mine")
    found = from_file(kind, tmp_path / "mine", special_tokens=special)
    text = "to be or not to be"
    ids = [x.encode_batch([text])[0] for x in (found, tokenizer)]
    assert ids[0].tolist() == ids[1].tolist()
    (tmp_path / second).unlink()
    with pytest.raises(FileNotFoundError, match=second):
        from_file(kind, tmp_path / "mine", special_tokens=special)


def test_fastbpe_gives_no_token_two_meanings(tmp_path):
    """Text may have "<s>", a special token, and "a@@", as vocab.txt spells an inner "a"."""
    texts = ["<s> a@@ b<s> c<s> mask <mask> a@@ Hà_Nội", "đại_học Hà_Nội <s>"] * 3
    tokenizer = train("fastbpe", texts, 120, special_tokens=CONVENTIONS["roberta"])
    assert len(set(tokenizer.tokens)) == 120 and tokenizer.num_unused > 0
    special, inner = tokenizer.ids["<s>"], tokenizer.ids["a@@"]
    ids = tokenizer.encode_batch(["<s> a@@ aà Hà_Nội"])[0].tolist()
    assert tokenizer.decode(ids[-1:]) == "Hà_Nội" and tokenizer.ids["à"] == ids[-2]
    assert ids[-3] == inner and special not in ids and inner not in ids[:-3]
    tokenizer.save(tmp_path)
    assert load(tmp_path).tokens == tokenizer.tokens
    for name in ("vocab.txt", "bpe.codes"):
        lines = (tmp_path / name).read_text("utf-8").splitlines()
        assert lines and all(line.endswith(" 1") for line in lines)


def test_alphabet_is_bounded_by_frequency_and_the_vocabulary():
    rare = [chr(c) for c in range(0x1200, 0x1800) if unicodedata.category(chr(c)) == "Lo"]
    texts = ["the people of the states"] * 5 + [" ".join(rare)]
    small, large = (train("wordpiece", texts, size) for size in (2100, 4000))
    assert set("thepolfsa") < set(small.tokens) and small.num_unused < 2
    assert 1000 < sum(len(token) == 1 for token in small.tokens) < len(rare)
    assert set("thepolfsa").union(rare) < set(large.tokens) and large.num_unused > 1000


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe", "moses_bpe"])
def test_words_of_more_than_200_characters_are_cut_or_left_out(kind):
    """The time is quadratic in the length of a word."""
    tokens = train(kind, [*sample_texts(1), "x" * 450, "x" * 450], 600).tokens
    assert max(map(len, tokens)) <= 200


@pytest.mark.parametrize(
    "kind, texts, size, words",
    [
        ("wordpiece", sample_texts(1), 30, "30 tokens is too small for this corpus"),
        ("wordpiece", [" ", ""], 100, "no text to train"),
        (
            "byte_bpe",
            sample_texts(1),
            260,
            "260 tokens is too small for this corpus: it needs more than 261",
        ),
        ("moses_bpe", sample_texts(1), 60, "60 tokens is too small for this corpus"),
        ("moses_bpe", [" ", ""], 300, "no text to train"),
        (
            "unigram",
            ["to be or not"] * 9,
            99,
            "train 99 tokens .99 pieces. on this text.*to a value <= ",
        ),
        (
            "unigram",
            sample_texts(1),
            30,
            "train 30 tokens .30 pieces. on this text.*smaller than required",
        ),
    ],
)
def test_unusable_corpora_and_sizes_are_refused(kind, texts, size, words):
    with pytest.raises(UserError, match=words):
        train(kind, texts, size)
