"""Exported tokenizers give the same ids in other programs and when they are read back."""

import json
import unicodedata

import pytest
import sentencepiece
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.interop import tokenizer_files as files
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.distilbert import DISTILBERT
from tests.interop.small_tokenizers import train
from tests.tokenizers.test_tokenizers import SPECIALS, sample_texts

KINDS = [("wordpiece", True), ("wordpiece", False), ("unigram", True), ("bpe", False)]
TEXTS = [
    "",
    " ",
    "The President of the United States, in 1862; unquestionably!",
    "  several   spaces \t tabs\nand\u00a0others ",
    "Café cafe\u0301 ÉLAN naïve 東京に中国力 Ελλάδα ПРИВЕТ שָׁלוֹם हिन्दी 한국어 ﬁ ½ １２３",
    "☃ ☃☃ unknown☃s 😀👩\u200d👩\u200d👧",
    "a\x00b\u200bc\u00add \ufeffe",
    *("a" * n for n in (99, 100, 101, 150, 151)),
]
# Characters that are the same in all Unicode tables. tests/tokenizers/test_parity.py and the
# docstring of tokenizer_json list what the library does differently.
LETTERS = st.characters(max_codepoint=0x33FF, categories=["L", "N", "P", "S", "Zs"]).filter(
    lambda c: (
        unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
        and c != "Σ"
        and c not in "\u166d\u2581"
    )
)
TEXT = st.text(LETTERS | st.sampled_from("aeiourst  ,.'中é"), max_size=40)


@pytest.fixture(
    scope="module",
    params=KINDS,
    ids=lambda p: f"{p[0]}-{'uncased' if p[1] else 'cased'}",
)
def tokenizer(request):
    return train(*request.param)


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported")
    files.write_huggingface_tokenizer(tokenizer, directory, BERT, 128)
    return directory


@pytest.fixture(scope="module")
def library(exported):
    return LibraryTokenizer.from_file(str(exported / "tokenizer.json"))


def library_ids(library, text):
    return library.encode(text, add_special_tokens=False).ids


def test_every_chain_of_conversions_keeps_the_fingerprint(tokenizer, tmp_path):
    ours = tokenizer
    for step, kind in enumerate(["huggingface", "bert_jax", "huggingface"]):
        folder = tmp_path / str(step)
        if kind == "huggingface":
            files.write_huggingface_tokenizer(ours, folder, BERT, 512)
            ours = files.read_huggingface_tokenizer(folder, BERT)[0]
        else:
            ours.save(folder)
            ours = tokenizers.load(folder)
        assert ours.fingerprint == tokenizer.fingerprint
        assert ours.options == tokenizer.options


def test_the_library_gives_the_same_ids(tokenizer, library):
    texts = TEXTS + sample_texts()[:300]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert library_ids(library, text) == ids.tolist(), ascii(text)

    @given(TEXT)
    def check(text):
        assume(not any(token in text for token in SPECIALS))
        (ids,) = tokenizer.encode_batch([text])
        assert library_ids(library, text) == ids.tolist()

    check()


def test_masks_in_a_text(tokenizer, library):
    """`encode_masked` converts masks like the library; `encode_batch` reads plain text."""
    for text in (
        "He went to the [MASK].",
        "[MASK], the senate",
        "the [MASK]s of  [MASK][MASK] men ",
        "un[MASK]able",
        " [MASK] ",
    ):
        ids = tokenizer.encode_masked(text).tolist()
        assert library_ids(library, text) == ids
        assert ids.count(tokenizer.mask_id) == text.count("[MASK]")
        assert tokenizer.mask_id not in tokenizer.encode_batch([text])[0]


def test_the_files_of_transformers(tokenizer, exported):
    config = json.loads((exported / "tokenizer_config.json").read_text("utf-8"))
    assert config["model_max_length"] == 128
    assert [config[f"{name}_token"] for name in ("pad", "unk", "cls", "sep", "mask")] == SPECIALS
    for i, token in config["added_tokens_decoder"].items():
        assert tokenizer.id_to_token(int(i)) == token["content"]
    assert len(config["added_tokens_decoder"]) == 5
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    if tokenizer.kind == "wordpiece":
        assert config["do_lower_case"] is tokenizer.options["lowercase"]
        lines = (exported / "vocab.txt").read_text("utf-8").split("\n")
        assert lines == [*tokenizer.tokens, ""]


def test_a_model_without_token_types_gets_none(tokenizer, tmp_path):
    files.write_huggingface_tokenizer(tokenizer, tmp_path, DISTILBERT, 128)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))
    assert config["model_input_names"] == ["input_ids", "attention_mask"]


def foreign_model(path, **options):
    """Trains a model with features that our models lack."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sample_texts()),
        model_prefix=str(path / "foreign"),
        vocab_size=600,
        minloglevel=2,
        **(dict(pad_id=0, pad_piece="[PAD]", unk_id=1, unk_piece="[UNK]") | options),
        **dict(bos_piece="[CLS]", eos_piece="[SEP]", bos_id=2, eos_id=3),
        control_symbols=["[MASK]"],
    )
    return tokenizers.from_file(
        "sentencepiece", path / "foreign.model", lowercase=False, max_input_chars_per_word=100
    )


@pytest.mark.parametrize(
    "options, words",
    [
        ({"byte_fallback": True}, "it falls back to bytes"),
        ({"user_defined_symbols": ["<url>"]}, "it has user-defined pieces"),
        ({"model_type": "char", "hard_vocab_limit": False}, "its type is neither unigram nor bpe"),
        ({"treat_whitespace_as_suffix": True}, "its pieces end with a space"),
    ],
)
def test_models_that_hugging_face_does_not_support(options, words, tmp_path):
    tokenizer = foreign_model(tmp_path, **options)
    with pytest.raises(UserError, match=f"cannot be written as a Hugging Face tokenizer: {words}"):
        files.write_huggingface_tokenizer(tokenizer, tmp_path / "out", BERT, 512)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False},
        {"normalization_rule_name": "identity"},
        {"split_by_whitespace": False},
        {"split_by_whitespace": False, "model_type": "bpe"},
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_other_sentencepiece_models_give_the_same_ids(options, tmp_path):
    tokenizer = foreign_model(tmp_path, **options)
    files.write_huggingface_tokenizer(tokenizer, tmp_path / "out", BERT, 512)
    library = LibraryTokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    texts = TEXTS + sample_texts()[:300]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert library_ids(library, text) == ids.tolist(), ascii(text)
