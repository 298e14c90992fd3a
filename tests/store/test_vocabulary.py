"""The vocabulary of a store: what training lacks, and added tokens."""

from collections import Counter
from pathlib import Path

import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.store.heldout import HeldOut
from bert_jax.store.preparation import prepare
from bert_jax.tokenizers import training
from tests.stores import VOCAB_SIZE, digest, make, options, parts_of, write_speeches


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("corpus") / "texts", 40)


class TestAddedTokens:
    @pytest.fixture(scope="class")
    def vocab(self, texts, tmp_path_factory):
        directory = tmp_path_factory.mktemp("base") / "store"
        make(options(texts), directory)
        return str(directory / "tokenizer" / "vocab.txt")

    def test_they_do_not_depend_on_parts(self, texts, vocab, tmp_path):
        data = options(texts, vocab=vocab, add_tokens="30")
        one = prepare(data, VOCAB_SIZE + 30, tmp_path / "one")
        with parts_of(8000):
            prepare(data, VOCAB_SIZE + 30, tmp_path / "many")
        assert digest(tmp_path / "one" / "tokenizer") == digest(tmp_path / "many" / "tokenizer")
        tokens = tokenizers.load(tmp_path / "one" / "tokenizer").tokens
        assert tokens[:VOCAB_SIZE] == Path(vocab).read_text().splitlines()
        # They are those of the words of all documents that are not held out.
        old, counts = tokenizers.from_file("wordpiece", vocab, lowercase=True), Counter()
        for number, source in enumerate(one["sources"]):
            if number not in HeldOut(0.05):
                counts.update(old.words(Path(source["path"]).read_text("utf-8")))
        assert tokens == training.extend(old, "30", [*counts.items()]).tokens
        report = one["report"]
        assert report["tokens_per_word_before"] == training.tokens_per_word(old, [*counts.items()])
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
        with pytest.raises(UserError, match="config.data.vocab: .*No such file.*no.txt"):
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
