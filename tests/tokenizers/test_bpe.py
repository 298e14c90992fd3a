"""A tokenizer.json with rules of its own, beside the library, and in directories of mmBERT."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from benchmarks.golden.tokenization import HAND_PICKED
from bert_jax.base.errors import UserError
from bert_jax.interop import tokenizer_files
from bert_jax.interop.families.eurobert import EUROBERT
from bert_jax.interop.families.modernbert import MODERNBERT
from bert_jax.tokenizers import CONVENTIONS, from_file, load
from tests.interop.small_tokenizers import SCRIPTS, gemma_like, llama_like
from tests.tokenizers.test_alignment import check_shape
from tests.tokenizers.test_tokenizers import sample_texts

GEMMA = CONVENTIONS["gemma"]


@pytest.fixture(scope="module")
def theirs():
    return gemma_like()


@pytest.fixture
def path(theirs, tmp_path):
    theirs.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def read(path):
    return from_file("tokenizer_json", path, special_tokens=GEMMA)


def test_ids_are_those_of_the_library(theirs, path):
    ours = read(path)
    assert ours.special_ids == (0, 3, 2, 1, 4) and ours.tokens[:5] == list(GEMMA.first)
    texts = [*sample_texts(4), *SCRIPTS[:1], *HAND_PICKED, "a\n\nb <b>\n  c", " ", ""]
    texts = [text for text in texts if not any(token in text for token in GEMMA.spellings)]
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert ours.join(ids).input_ids_L.tolist() == theirs.encode(text).ids
        assert ours.decode(ids.tolist()) == text
        if text.strip() and text.isascii():
            check_shape(ours, text)


def test_special_tokens_in_a_text_are_plain_text(path):
    ours = read(path)
    (ids,) = ours.encode_batch(["a <mask> <bos>"])
    assert not {0, 1, 2, 4} & {*ids.tolist()} and ours.decode(ids.tolist()) == "a <mask> <bos>"
    masked = ours.encode_masked("the <mask> of")
    assert (masked == ours.mask_id).sum() == 1


def test_spans_leave_out_the_space_before_a_word(path):
    ours = read(path)
    text = "the  senate of\n\nthe house"
    ids, spans = ours.encode_aligned(text)
    np.testing.assert_array_equal(ids, ours.encode_batch([text])[0])
    newline = text.index("\n")
    assert [newline, newline + 2] in spans.tolist()
    starts = [s for s, _ in spans.tolist() if s != newline]
    assert not any(text[start] == " " for start in starts if text[start - 1] != " ")


def test_directories_of_mmbert_keep_the_fingerprint(path, tmp_path):
    ours = read(path)
    # As released: a class of transformers that says nothing of the rules.
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    released = tokenizer_files.read_huggingface_tokenizer(tmp_path, MODERNBERT)[0]
    assert released.fingerprint == ours.fingerprint
    tokenizer_files.write_huggingface_tokenizer(ours, tmp_path / "hf", MODERNBERT, 512)
    assert load(tmp_path / "hf").fingerprint == ours.fingerprint
    (tmp_path / "hf" / "bert_jax_tokenizer.json").unlink()
    again = tokenizer_files.read_huggingface_tokenizer(tmp_path / "hf", MODERNBERT)[0]
    assert again.fingerprint == ours.fingerprint


def test_eurobert_pads_with_the_end_of_a_text(tmp_path):
    """Its words are Llama 3's, and whole words that are pieces need no merges."""
    llama = llama_like()
    llama.save(str(tmp_path / "tokenizer.json"))
    ours, _ = tokenizer_files.read_huggingface_tokenizer(tmp_path, EUROBERT)
    assert ours.kind == "tokenizer_json" and ours.vocab_size == 605
    assert ours.pad_id == ours.sep_id == 601 and len({*ours.special_ids}) == 4
    texts = [*sample_texts(4), *SCRIPTS[:1], "In 1234567 they'LL, WE'D\n\nagain", ""]
    for text, ids in zip(texts, ours.encode_batch(texts), strict=True):
        assert ours.join(ids).input_ids_L.tolist() == llama.encode(text).ids
        assert ours.decode(ids.tolist()) == text
    # A separator is no unknown token.
    assert ours.unknown_fraction(np.array([600, 5, 601, 5, 601])) == 0
    tokenizer_files.write_huggingface_tokenizer(ours, tmp_path / "hf", EUROBERT, 512)
    again = LibraryTokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    for text in [*texts, "a <|mask|> b"]:
        assert again.encode(text).ids == llama.encode(text).ids
    assert load(tmp_path / "hf").fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda c: c.update(model={"type": "Unigram"}), "has no BPE model that joins"),
        (lambda c: c["model"].update(vocab=[]), "is damaged or another program's"),
    ],
)
def test_damaged_files(path, change, message):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        read(path)


def test_a_dropout_of_merges_is_turned_off(path):
    """With it, the library gives a text other ids each time."""
    expected = read(path)
    edit(path, "model", dropout=0.5)
    assert read(path).fingerprint == expected.fingerprint
    assert expected.library().model.dropout is None


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("model", {"vocab": {"a": 0, "b": 4_000_000_000}, "merges": []}),
        # The library panics.
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
        (
            "added_tokens",
            [{**ADDED, "id": 4_000_000_000, "content": "<mask>", "special": True}],
        ),
    ],
)
def test_a_file_that_the_library_cannot_use_is_one_sentence(path, section, values):
    edit(path, section, **values) if section == "model" else edit(path, "", **{section: values})
    with pytest.raises(UserError, match="tokenizer.json is damaged or another program's: .+$"):
        read(path)


def test_a_prefix_inside_words_is_refused(path):
    """With a piece that is shorter, the library aborts the process."""
    edit(path, "model", continuing_subword_prefix="##")
    with pytest.raises(UserError, match="continuing_subword_prefix is '##'; it must be empty"):
        read(path)


def edit(path, section, **values):
    content = json.loads(path.read_text())
    (content[section] if section else content).update(values)
    path.write_text(json.dumps(content))
