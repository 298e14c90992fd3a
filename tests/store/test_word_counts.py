"""Vocabularies trained on the counts of all words."""

import functools
import sys
from pathlib import Path

import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.store import word_counts
from bert_jax.store.engines import LocalProcesses
from bert_jax.store.heldout import HeldOut
from bert_jax.store.preparation import prepare
from bert_jax.text.sentences import split_sentences
from tests.stores import VOCAB_SIZE, digest, options, write_speeches

BYTE_BPE = {"tokenizer": "byte_bpe", "lowercase": False}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("corpus") / "texts", 40)


def make(texts, output, engine=None, **changes):
    data = options(texts, vocab_from="counts", **changes)
    return prepare(data, VOCAB_SIZE, output, engine=engine)


@pytest.mark.parametrize("changes", [{}, BYTE_BPE])
def test_one_vocabulary_from_any_parts_and_engine(texts, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(word_counts, "GROUP_PARTS", 3)
    # Several sorted files for each part.
    monkeypatch.setattr(word_counts, "_COUNTED_CHARACTERS", 3000)
    metadata = make(texts, tmp_path / "one", **changes)
    assert metadata["options"]["vocab_from"] == "counts"
    make_parts = functools.partial(make, texts, part_bytes=8000, **changes)
    make_parts(tmp_path / "parts", LocalProcesses(1))
    assert len(list((tmp_path / "parts" / "train").glob("0*"))) > 6
    found = {name: digest(tmp_path / name / "tokenizer") for name in ("one", "parts")}
    assert found["one"] == found["parts"]
    # It is the vocabulary that the library trains on the text without the held-out documents.
    paths = [Path(source["path"]) for source in metadata["sources"]]
    kept = [path.read_text("utf-8") for i, path in enumerate(paths) if i not in HeldOut(0.05)]
    trained = tokenizers.train(
        changes.get("tokenizer", "wordpiece"),
        [sentence for text in kept for sentence in split_sentences(text)],
        vocab_size=VOCAB_SIZE,
        lowercase=not changes,
    )
    assert trained.fingerprint == tokenizers.load(tmp_path / "one" / "tokenizer").fingerprint


def test_the_most_frequent_words_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(word_counts, "_TRAINED_BYTES", 4)
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, text in zip(paths, ["to be or not to be", "to do or not at all, é"], strict=True):
        word_counts.write_counts([text], str.split, path)
    assert paths[0].read_text() == "be\t2\nnot\t1\nor\t1\nto\t2\n"
    # At equal counts, the last words in order stay.
    assert dict(word_counts.most_frequent(paths)) == {"to": 3, "or": 2}


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        (
            {"tokenizer": "moses_bpe", "special_tokens": "xlm"},
            VOCAB_SIZE,
            "moses_bpe .FlauBERT. needs sacremoses, which is not installed",
        ),
        ({"vocab": "vocab.txt"}, 7, "model.vocab_size is 7, but the vocabulary vocab.txt has 6"),
    ],
)
def test_what_the_tokenizer_lacks_is_said_before_the_text_is_read(
    texts, tmp_path, monkeypatch, changes, size, message
):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    with pytest.raises(UserError, match=message):
        prepare(options(texts, **changes), size, tmp_path / "store")
    assert not (tmp_path / "store").exists()


class TestAddedTokens:
    @pytest.fixture(scope="class")
    def vocab(self, texts, tmp_path_factory):
        directory = tmp_path_factory.mktemp("base") / "store"
        make(texts, directory)
        return str(directory / "tokenizer" / "vocab.txt")

    def test_they_do_not_depend_on_parts_and_processes(self, texts, vocab, tmp_path):
        data = options(texts, vocab=vocab, add_tokens="30")
        one = prepare(data, VOCAB_SIZE + 30, tmp_path / "one")
        many = options(texts, vocab=vocab, add_tokens="30", part_bytes=8000, num_processes=2)
        prepare(many, VOCAB_SIZE + 30, tmp_path / "many")
        assert digest(tmp_path / "one" / "tokenizer") == digest(tmp_path / "many" / "tokenizer")
        tokens = tokenizers.load(tmp_path / "one" / "tokenizer").tokens
        assert tokens[:VOCAB_SIZE] == Path(vocab).read_text().splitlines()
        report = one["report"]
        assert report["tokens_per_word"] < report["tokens_per_word_before"]
        # The same settings find the store finished; others are refused.
        assert prepare(data, VOCAB_SIZE + 30, tmp_path / "one") == one
        data.add_tokens = "31"
        with pytest.raises(UserError, match="was made with data.add_tokens='30', not '31'"):
            prepare(data, VOCAB_SIZE + 31, tmp_path / "one")

    def test_a_file_is_known_by_its_content(self, texts, vocab, tmp_path):
        words = tmp_path / "words.txt"
        words.write_text("commissioners\nappropriations\n")
        data = options(texts, vocab=vocab, add_tokens=str(words))
        prepare(data, VOCAB_SIZE + 2, tmp_path / "store")
        found = tokenizers.load(tmp_path / "store" / "tokenizer").tokens[VOCAB_SIZE:]
        assert found == ["commissioners", "appropriations"]
        data.add_tokens = str(words.rename(tmp_path / "moved.txt"))
        prepare(data, VOCAB_SIZE + 2, tmp_path / "store")
        data.add_tokens = str(tmp_path / "no.txt")
        with pytest.raises(UserError, match="cannot read .*no.txt: No such file"):
            prepare(data, VOCAB_SIZE + 2, tmp_path / "store")
        data.add_tokens = str(words)
        prepare(data, VOCAB_SIZE + 2, tmp_path / "store")
        words.write_text("commissioners\nharbors\n")
        with pytest.raises(UserError, match="was made with data.vocab='sha256:"):
            prepare(data, VOCAB_SIZE + 2, tmp_path / "store")
        with pytest.raises(
            UserError, match="has 402 tokens with data.add_tokens=.*vocab_size to 402"
        ):
            prepare(data, VOCAB_SIZE, tmp_path / "other")
