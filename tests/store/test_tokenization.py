"""Documents as tokens: division of long sentences, counts and errors of worker processes."""

import multiprocessing
import shutil

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.store.tokenization import SentenceRules, document_to_tokens, tokenize_documents
from bert_jax.text.corpus import Document
from bert_jax.text.sentences import divide_sentence
from bert_jax.tokenizers.wordpiece import num_lost

WORDS = [f"w{i}" for i in range(1000)]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(
        "wordpiece",
        [" ".join(WORDS)] * 2,
        vocab_size=1200,
        lowercase=True,
        max_input_chars_per_word=200,
        sentencepiece_type="unigram",
    )


@pytest.mark.parametrize(
    "text, limit, parts",
    [
        ("short", 5, ["short"]),
        ("one two, three four", 12, ["one two, ", "three four"]),
        ("one two three", 9, ["one two ", "three"]),
        ("一二三，四五六", 4, ["一二三，", "四五六"]),  # noqa: RUF001
        ("abcdef", 3, ["abc", "def"]),
        ("กกกิ่กก", 4, ["กก", "กิ่", "กก"]),
    ],
)
def test_sentences_are_cut_at_the_best_place(text, limit, parts):
    assert divide_sentence(text, limit) == parts


def test_long_sentences_are_divided_without_losing_tokens(tokenizer):
    text = " ".join(WORDS)
    (whole,) = document_to_tokens(text, tokenizer)
    for limit in (16, 100, len(whole)):
        parts = document_to_tokens(text, tokenizer, rules=SentenceRules(max_sentence_tokens=limit))
        assert max(map(len, parts)) <= limit
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_counts_of_a_document(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    document = Document("x", 1, f"{' '.join(WORDS[:200])}\n\nw1 Ω", False)

    def counts(rules):
        (tokens,) = tokenize_documents([document], tmp_path, 1, rules)
        return tokens.counts

    undivided, divided = counts(SentenceRules()), counts(SentenceRules(max_sentence_tokens=50))
    assert undivided["unknown_tokens"] == 1 and undivided["characters"] == len(document.text)
    assert undivided["divided_tokens"] == 0
    assert divided == undivided | {"divided_tokens": undivided["tokens"] - 2}


@pytest.mark.parametrize(
    "text, lost", [("abc", 0), ("éαή", 0), ("हिन्दी", 1), ("ที่นี่", 4), ("が", 1), ("한", 0)]
)
def test_marks_that_lower_casing_strips(text, lost):
    assert num_lost(text) == lost


def test_a_bad_document_leaves_no_traceback_of_workers(tokenizer, tmp_path, capfd):
    def documents():
        for number in range(3):
            yield Document("a.txt", number, "one two " * 2**17, is_split=False)
        raise UserError("bad")

    tokenizer.save(tmp_path / "tokenizer")
    with pytest.raises(UserError, match="bad"):
        list(tokenize_documents(documents(), tmp_path / "tokenizer", 2))
    # A command removes a temporary tokenizer now.
    shutil.rmtree(tmp_path / "tokenizer")
    for process in multiprocessing.active_children():
        process.join()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("of_document", "of_config", "number"), [("", "", 2), ("de", "", 1), ("de", "en", 2)]
)
def test_the_language_of_a_document_is_the_default(
    tokenizer, tmp_path, of_document, of_config, number
):
    tokenizer.save(tmp_path)
    document = Document("x", 1, "w1 am 3. Mai w5.", False, language=of_document)
    (tokens,) = tokenize_documents([document], tmp_path, 1, SentenceRules(language=of_config))
    assert len(tokens.sentence_lengths) == number
