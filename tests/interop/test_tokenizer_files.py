import json
import unicodedata

import pytest
import sentencepiece
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer

from bert_jax import tokenizers
from bert_jax.data.corpus import built_in_files
from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files as files

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KINDS = ["wordpiece", "unigram", "bpe"]
SCRIPTS = ["Café naïve ÉLAN 東京 中国力 Ελλάδα привет שלום مرحبا हिन्दी 한국어 ﬁ ½ １２３"] * 5
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
# Characters that are alike to all Unicode tables. What the library does otherwise is in
# tests/tokenizers/test_parity.py, and for SentencePiece in tokenizer_json's docstring.
LETTERS = st.characters(max_codepoint=0x33FF, categories=["L", "N", "P", "S", "Zs"]).filter(
    lambda c: (
        unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)
        and c != "Σ"
        and c not in "\u166d\u2581"
    )
)
TEXT = st.text(LETTERS | st.sampled_from("aeiourst  ,.'中é"), max_size=40)


def sample_texts():
    return [line for f in built_in_files()[:10] for line in f.read_text("utf-8").split("\n")]


def train(kind, lowercase, max_chars=150):
    return tokenizers.train(
        "wordpiece" if kind == "wordpiece" else "sentencepiece",
        sample_texts() + SCRIPTS,
        vocab_size=900,
        lowercase=lowercase,
        max_input_chars_per_word=max_chars,
        sentencepiece_type=kind if kind != "wordpiece" else "unigram",
    )


@pytest.fixture(
    scope="module",
    params=[(kind, lowercase) for kind in KINDS for lowercase in (True, False)],
    ids=lambda p: f"{p[0]}-{'uncased' if p[1] else 'cased'}",
)
def tokenizer(request):
    return train(*request.param)


@pytest.fixture(scope="module")
def exported(tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported")
    files.write_huggingface_tokenizer(tokenizer, directory, 128)
    return directory


@pytest.fixture(scope="module")
def library(exported):
    return LibraryTokenizer.from_file(str(exported / "tokenizer.json"))


def library_ids(library, text):
    return library.encode(text, add_special_tokens=False).ids


def test_every_chain_of_conversions_keeps_the_fingerprint(tokenizer, tmp_path):
    ours = tokenizer
    for step, kind in enumerate(["huggingface", "google", "google", "huggingface", "bert_jax"] * 2):
        folder = tmp_path / str(step)
        if kind == "huggingface":
            files.write_huggingface_tokenizer(ours, folder, 512)
            ours = files.read_huggingface_tokenizer(folder)
        elif kind == "google":
            files.write_google_tokenizer(ours, folder)
            ours = files.read_google_tokenizer(folder)
        else:
            ours.save(folder)
            ours = tokenizers.load(folder)
        assert ours.fingerprint == tokenizer.fingerprint
        assert ours.options == tokenizer.options


def test_the_library_gives_the_same_ids(tokenizer, library):
    texts = TEXTS + [text for text in sample_texts()[:300]]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert library_ids(library, text) == ids.tolist(), ascii(text)


def test_the_library_gives_the_same_ids_for_any_text(tokenizer, library):
    @given(TEXT)
    def check(text):
        assume(not any(token in text for token in SPECIALS))
        (ids,) = tokenizer.encode_batch([text])
        assert library_ids(library, text) == ids.tolist()

    check()


def test_pairs_get_special_tokens_and_types(tokenizer, library):
    a, b = (ids.tolist() for ids in tokenizer.encode_batch(["the senate", "of the house"]))
    pair = library.encode("the senate", "of the house")
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert pair.ids == [cls, *a, sep, *b, sep]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert library.encode("the senate").ids == [cls, *a, sep]


def test_special_tokens_in_the_text_are_special_there_and_text_here(tokenizer, library):
    ids = library_ids(library, "the [MASK] of")
    (before,), (after,) = (tokenizer.encode_batch([text]) for text in ("the", "of"))
    assert ids == [*before, tokenizer.mask_id, *after]
    assert tokenizer.mask_id not in tokenizer.encode_batch(["the [MASK] of"])[0]
    assert library.decode(ids, skip_special_tokens=True).split() == ["the", "of"]


@pytest.mark.parametrize(
    "text",
    [
        "He went to the [MASK].",
        "[MASK] of the house",
        "[MASK], the senate",
        "the [MASK]s of  [MASK][MASK] men ",
        "un[MASK]able",
        " [MASK] ",
        "[MASK]",
    ],
)
def test_a_mask_begins_no_word(tokenizer, library, text):
    """The library has it as we have, and so had the model when it was trained."""
    ids = tokenizer.encode_masked(text).tolist()
    assert library_ids(library, text) == ids
    assert ids.count(tokenizer.mask_id) == text.count("[MASK]")


def test_what_stands_about_a_mask_is_as_without_it(tokenizer):
    masked = tokenizer.encode_masked("the senate of the [MASK], and").tolist()
    (whole,) = tokenizer.encode_batch(["the senate of the the, and"])
    at = masked.index(tokenizer.mask_id)
    assert masked[:at] == whole[:at].tolist() and masked[at + 1 :] == whole[at + 1 :].tolist()


def test_what_transformers_is_told(tokenizer, exported):
    config = json.loads((exported / "tokenizer_config.json").read_text("utf-8"))
    assert config["model_max_length"] == 128
    assert [config[f"{name}_token"] for name in ("pad", "unk", "cls", "sep", "mask")] == SPECIALS
    for i, token in config["added_tokens_decoder"].items():
        assert tokenizer.id_to_token(int(i)) == token["content"]
    assert len(config["added_tokens_decoder"]) == 5
    if tokenizer.kind == "wordpiece":
        assert config["tokenizer_class"] == "BertTokenizer"
        assert config["do_lower_case"] is tokenizer.options["lowercase"]
        lines = (exported / "vocab.txt").read_text("utf-8").split("\n")
        assert lines == [*tokenizer.tokens, ""]
    else:
        assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    specials = json.loads((exported / "special_tokens_map.json").read_text("utf-8"))
    assert sorted(specials.values()) == sorted(SPECIALS)


def test_directories_without_a_tokenizer(tmp_path):
    assert files.read_huggingface_tokenizer(tmp_path) is None
    assert files.read_google_tokenizer(tmp_path) is None


@pytest.fixture
def wordpiece(tmp_path):
    """A directory of `transformers`, with its tokenizer and our own, uncased."""
    ours = train("wordpiece", True, 100)
    files.write_huggingface_tokenizer(ours, tmp_path, 512)
    return tmp_path, ours


def edit(path, change):
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def test_a_vocabulary_alone_follows_the_rules_of_its_program(wordpiece):
    directory, ours = wordpiece
    (directory / "tokenizer.json").unlink()
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint
    edit(directory / "tokenizer_config.json", lambda c: c.update(do_lower_case=False))
    cased = files.read_huggingface_tokenizer(directory).options
    assert cased == ours.options | {"lowercase": False}
    (directory / "tokenizer_config.json").unlink()
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint
    google = files.read_google_tokenizer(directory).options
    assert google == ours.options | {"max_input_chars_per_word": 200}


@pytest.mark.parametrize(
    "entries, lowercase",
    [("a b [unused1] <S> é", True), ("a b ##C", False), ("a É", False), ("中 ß", True)],
)
def test_upper_case_entries_mean_a_cased_vocabulary(entries, lowercase, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS + entries.split()), "utf-8")
    assert files.read_google_tokenizer(tmp_path).options["lowercase"] is lowercase
    said = files.read_google_tokenizer(tmp_path, not lowercase)
    assert said.options["lowercase"] is not lowercase


def test_a_contradicted_lower_casing_is_refused(tokenizer, tmp_path):
    files.write_google_tokenizer(tokenizer, tmp_path)
    said = tokenizer.options["lowercase"]
    assert files.read_google_tokenizer(tmp_path, said).fingerprint == tokenizer.fingerprint
    with pytest.raises(UserError, match=f"lowercase is {said}, not {not said}"):
        files.read_google_tokenizer(tmp_path, not said)


def test_files_that_transformers_saved_again(wordpiece):
    """It adds truncation and padding, leaves out what is default, and an older one the types."""
    directory, ours = wordpiece

    def change(content):
        content["truncation"] = {"max_length": 128, "strategy": "LongestFirst", "stride": 0}
        content["padding"] = {"strategy": {"Fixed": 128}, "pad_id": 0, "pad_token": "[PAD]"}
        del content["model"]["type"]

    edit(directory / "tokenizer.json", change)
    (directory / "tokenizer_config.json").unlink()
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint


def set_in(section, **values):
    return lambda content: content[section].update(values)


def remove_mask(content):
    vocabulary = content["model"]["vocab"]
    vocabulary["[mask]"] = vocabulary.pop("[MASK]")


def add_token(content):
    content["added_tokens"].append({"id": 900, "content": "[E1]", "special": True})


def roberta(content):
    content["model"] = {"type": "BPE", "vocab": {"<s>": 0}, "merges": []}
    content["normalizer"], content["pre_tokenizer"] = None, {"type": "ByteLevel"}


@pytest.mark.parametrize(
    "change, words",
    [
        (roberta, "its model is BPE, not BERT's WordPiece"),
        (lambda c: c.pop("model"), "its model is missing, not BERT's WordPiece"),
        (remove_mask, r"has no \[MASK\]"),
        (set_in("normalizer", strip_accents=False), "strip_accents must be null or as the lower"),
        (set_in("normalizer", handle_chinese_chars=False), "Chinese characters are not split"),
        (set_in("normalizer", clean_text=False), "clean_text must be true"),
        (set_in("normalizer", type="NFC"), "its normalizer is not BERT's"),
        (set_in("pre_tokenizer", type="Whitespace"), "its pre-tokenizer is not BERT's"),
        (set_in("model", unk_token="<unk>"), "its unk_token must be"),
        (set_in("model", continuing_subword_prefix="@@"), "continuing_subword_prefix must be ##"),
        (set_in("model", vocab=[]), "no `vocab`"),
        (
            lambda c: c["model"]["vocab"].update(zzzz=5000),
            "ids of its 901 entries must be 0 to 900",
        ),
        (lambda c: c["model"]["vocab"].update({"a\nb": 900}), "cannot be a line of a vocab.txt"),
        (lambda c: c["model"]["vocab"].update({"\ud800": 900}), "cannot be a line of a vocab.txt"),
        (set_in("model", max_input_chars_per_word=-1), "max_input_chars_per_word above 0"),
        (add_token, r"adds tokens that BERT does not have: \[E1\]"),
        (lambda c: c.update(added_tokens=[5]), "added tokens must each have"),
        (lambda c: c.update(added_tokens={}), "added tokens must each have"),
        (lambda c: c["added_tokens"].append({"id": 9, "content": "[MASK]"}), r"\[MASK\] has two"),
    ],
)
def test_other_tokenizers_are_refused(change, words, wordpiece):
    directory, _ = wordpiece
    edit(directory / "tokenizer.json", change)
    with pytest.raises(UserError, match=f"tokenizer.json .*{words}") as error:
        files.read_huggingface_tokenizer(directory)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "values, words",
    [
        ({"strip_accents": False}, "strip_accents must be"),
        ({"tokenize_chinese_chars": False}, "Chinese characters"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize must be true"),
        ({"do_lower_case": False}, "do_lower_case is not what tokenizer.json says, True"),
    ],
)
def test_configs_that_differ_are_refused(values, words, wordpiece):
    directory, _ = wordpiece
    edit(directory / "tokenizer_config.json", lambda content: content.update(values))
    with pytest.raises(UserError, match=f"tokenizer_config.json .*{words}"):
        files.read_huggingface_tokenizer(directory)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "name, content, words",
    [
        ("config", {"900": {"content": "[E1]"}}, r"tokens that BERT does not have: \[E1\]"),
        ("config", {"900": {"content": "a\nb"}}, r"tokens that BERT does not have: 'a\\nb'"),
        ("config", {"5": {"content": "[MASK]"}}, r"\[MASK\] has two ids"),
        ("config", {"900": {"content": ["[E1]"]}}, "added tokens must each have"),
        ("config", {"900": "[E1]"}, "added_tokens_decoder must have a token for each id"),
        ("config", {"x": {"content": "[E1]"}}, "added_tokens_decoder must have a token for"),
        ("config", {"9" * 5000: {"content": "[E1]"}}, "added_tokens_decoder must have a token"),
        ("config", ["[E1]"], "added_tokens_decoder must have a token for each id"),
        ("added", {"[E1]": 900}, r"tokens that BERT does not have: \[E1\]"),
        ("added", {"[MASK]": 900}, r"\[MASK\] has two ids"),
        ("added", {"": 900}, "added tokens must each have"),
        ("added", {"[E1]": [900]}, "it must have an id for each token"),
        ("added", ["[E1]"], "is damaged: it should be a JSON object"),
    ],
)
def test_added_tokens_are_refused_wherever_they_stand(name, content, words, fast, wordpiece):
    directory, _ = wordpiece
    if not fast:
        (directory / "tokenizer.json").unlink()
    if name == "config":
        path = directory / "tokenizer_config.json"
        edit(path, lambda c: c.update(added_tokens_decoder=content))
    else:
        path = directory / "added_tokens.json"
        path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match=f"{path.name} .*{words}") as error:
        files.read_huggingface_tokenizer(directory)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fast", [True, False])
def test_added_tokens_that_are_bert_s_own(fast, wordpiece):
    directory, ours = wordpiece
    if not fast:
        (directory / "tokenizer.json").unlink()
    ids = dict(zip(SPECIALS, ours.special_ids, strict=True))
    (directory / "added_tokens.json").write_text(json.dumps(ids), "utf-8")
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint
    edit(directory / "tokenizer_config.json", lambda c: c.update(added_tokens_decoder=None))
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint


def test_a_vocabulary_unlike_its_tokenizer_json_is_refused(wordpiece):
    directory, ours = wordpiece
    entries = "\n".join(reversed(ours.tokens))
    (directory / "vocab.txt").write_text(entries, "utf-8")
    with pytest.raises(UserError, match=r"vocab.txt and .*tokenizer.json have different entries"):
        files.read_huggingface_tokenizer(directory)
    (directory / "vocab.txt").unlink()
    assert files.read_huggingface_tokenizer(directory).fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
)
def test_a_full_disk_names_the_file(name, wordpiece):
    directory, ours = wordpiece
    (directory / name).unlink()
    (directory / name).symlink_to("/dev/full")
    with pytest.raises(OSError) as error:
        files.write_huggingface_tokenizer(ours, directory, 512)
    assert error.value.filename == str(directory / name)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
def test_damaged_files_are_refused(name, wordpiece):
    directory, _ = wordpiece
    if name == "added_tokens.json":
        (directory / name).write_text('{"[E1]": 900, "[E2]": 901}', "utf-8")
    content = (directory / name).read_bytes()
    for damaged, words in [
        (content[: len(content) // 2], "is damaged: it is not whole JSON"),
        (content[:-20] + b"\xff", "is damaged: it is not valid UTF-8"),
        (b"", "is damaged"),
        (b"[1]", "is damaged: it should be a JSON object"),
        (b'{"added_tokens_decoder":' + b"[" * 10**5, "is damaged: it is nested too deeply"),
    ]:
        (directory / name).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name} {words}"):
            files.read_huggingface_tokenizer(directory)


def test_damaged_vocabularies_are_refused(wordpiece):
    directory, _ = wordpiece
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    for read in (files.read_huggingface_tokenizer, files.read_google_tokenizer):
        with pytest.raises(UserError, match="vocab.txt:2: the vocabulary is not valid UTF-8"):
            read(directory)


def test_a_damaged_sentencepiece_export_is_refused(tmp_path):
    files.write_huggingface_tokenizer(train("bpe", True), tmp_path, 512)
    model = tmp_path / "sentencepiece.model"
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(UserError, match="sentencepiece.model is not a SentencePiece model"):
        files.read_huggingface_tokenizer(tmp_path)
    (tmp_path / files.OPTIONS_FILE).unlink()
    with pytest.raises(UserError, match="needs its sentencepiece.model and bert_jax_tokenizer"):
        files.read_huggingface_tokenizer(tmp_path)


def foreign_model(path, **options):
    """A user's own model, with features that ours have not."""
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
        ({"treat_whitespace_as_suffix": True}, "its pieces end with the space"),
    ],
)
def test_models_that_hugging_face_cannot_hold(options, words, tmp_path):
    tokenizer = foreign_model(tmp_path, **options)
    with pytest.raises(UserError, match=f"cannot be written as a Hugging Face tokenizer: {words}"):
        files.write_huggingface_tokenizer(tokenizer, tmp_path / "out", 512)
    assert not (tmp_path / "out").exists()
    files.write_google_tokenizer(tokenizer, tmp_path / "google")
    again = files.read_google_tokenizer(tmp_path / "google")
    assert again.fingerprint == tokenizer.fingerprint


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
def test_models_of_other_makes_give_the_same_ids(options, tmp_path):
    tokenizer = foreign_model(tmp_path, **options)
    files.write_huggingface_tokenizer(tokenizer, tmp_path / "out", 512)
    library = LibraryTokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    texts = TEXTS + sample_texts()[:300]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert library_ids(library, text) == ids.tolist(), ascii(text)
