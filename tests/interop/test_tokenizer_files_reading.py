"""Tokenizer files of other programs: how they are read, and which are refused."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.interop import tokenizer_files as files
from tests.interop.small_tokenizers import SPECIALS, train


def test_directories_without_a_tokenizer(tmp_path):
    assert files.read_huggingface_tokenizer(tmp_path) is None
    assert files.read_google_tokenizer(tmp_path) is None


@pytest.fixture(scope="module")
def ours():
    return train("wordpiece", True, 100)


@pytest.fixture
def wordpiece(ours, tmp_path):
    """A directory of `transformers`, and the uncased tokenizer in it."""
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


def test_files_that_transformers_saved_again(wordpiece):
    """transformers adds truncation and padding, and leaves defaults out."""
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
        (set_in("normalizer", strip_accents=False), "strip_accents must be null or equal to lower"),
        (set_in("normalizer", handle_chinese_chars=False), "Chinese characters are not split"),
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
        (set_in("model", max_input_chars_per_word=-1), "max_input_chars_per_word above 0"),
        (add_token, r"adds tokens that BERT does not have: \[E1\]"),
        (lambda c: c.update(added_tokens=[5]), "added tokens must each have"),
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
        ({"do_lower_case": False}, "do_lower_case must be True, as in tokenizer.json"),
    ],
)
def test_configs_that_differ_are_refused(values, words, wordpiece):
    directory, _ = wordpiece
    edit(directory / "tokenizer_config.json", lambda content: content.update(values))
    with pytest.raises(UserError, match=f"tokenizer_config.json .*{words}"):
        files.read_huggingface_tokenizer(directory)


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("config", {"900": {"content": "[E1]"}}, r"tokens that BERT does not have: \[E1\]"),
        ("config", {"900": {"content": "a\nb"}}, r"tokens that BERT does not have: 'a\\nb'"),
        ("config", {"5": {"content": "[MASK]"}}, r"\[MASK\] has two ids"),
        ("config", {"900": "[E1]"}, "added_tokens_decoder must have a token for each id"),
        ("config", {"9" * 5000: {"content": "[E1]"}}, "added_tokens_decoder must have a token"),
        ("added", {"[E1]": 900}, r"tokens that BERT does not have: \[E1\]"),
        ("added", {"[MASK]": 900}, r"\[MASK\] has two ids"),
        ("added", {"[E1]": [900]}, "it must have an id for each token"),
        ("added", ["[E1]"], "is damaged: it should be a JSON object"),
    ],
)
def test_added_tokens_are_refused_in_every_file(name, content, words, wordpiece):
    directory, _ = wordpiece
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
def test_added_tokens_of_bert(fast, wordpiece):
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
    with pytest.raises(UserError, match="needs sentencepiece.model and bert_jax_tokenizer"):
        files.read_huggingface_tokenizer(tmp_path)
