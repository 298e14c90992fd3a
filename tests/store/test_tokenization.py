"""Documents as tokens: counts, and errors of worker processes."""

import multiprocessing
import shutil

import pytest

from bert_jax.base.errors import UserError
from bert_jax.store import tokenization
from bert_jax.store.tokenization import num_lost, tokenize_documents
from bert_jax.text.corpus import Document
from bert_jax.tokenizers import training

WORDS = [f"w{i}" for i in range(1000)]


@pytest.fixture(scope="module")
def tokenizer():
    return training.train(
        "wordpiece",
        [" ".join(WORDS)] * 2,
        vocab_size=1200,
        lowercase=True,
        max_input_chars_per_word=200,
        sentencepiece_type="unigram",
    )


def test_counts_of_a_document(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    document = Document("x", 1, f"{' '.join(WORDS[:200])}\n\nw1 Ω", False)

    (tokens,) = tokenize_documents([document], tmp_path, 1)
    assert tokens.counts["unknown_tokens"] == 1
    assert tokens.counts["characters"] == len(document.text)


@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("separator", [" ", ""])
def test_a_long_text_without_sentence_ends_is_encoded_in_pieces(
    tokenizer, monkeypatch, is_split, separator
):
    """Encoding it at once takes up to 80 times its memory."""
    monkeypatch.setattr(tokenization, "SENTENCE_CHARACTERS", 1000)
    words = WORDS * 3
    text = separator.join(words)
    document = Document("x", 1, f"w1 w2\n{text}", is_split)
    sizes, encode = [], tokenizer.encode_batch
    monkeypatch.setattr(
        tokenizer, "encode_batch", lambda texts: sizes.append(sum(map(len, texts))) or encode(texts)
    )
    sentences = tokenization.document_sentences(document)
    assert max(map(len, sentences)) <= 1000
    assert separator.join(sentences).split() == document.text.replace("\n", separator).split()
    found = tokenization._tokenize(document, tokenizer, ("", "vocabulary"))
    assert max(sizes) < 2 * 1000 and len(sizes) > 10
    if separator:
        (expected,) = encode([document.text])
        assert found.tokens.tolist() == expected.tolist()


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
    (tokens,) = tokenize_documents([document], tmp_path, 1, (of_config, "vocabulary"))
    assert len(tokens.sentence_lengths) == number
