"""Reading tokenizer files of other programs, and refusals."""

import json

import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.interop import tokenizer_files as files
from bert_jax.interop.families.bert import BERT
from tests.interop.small_tokenizers import train
from tests.tokenizers.test_tokenizers import SPECIALS


@pytest.fixture(scope="module")
def ours():
    return train("wordpiece", True, 100)


@pytest.fixture
def directory(ours, tmp_path):
    """A directory of `transformers` with an uncased tokenizer."""
    files.write_huggingface_tokenizer(ours, tmp_path, BERT, 512)
    return tmp_path


def edit(path, change):
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


def read(directory):
    return files.read_huggingface_tokenizer(directory, BERT)[0]


def test_lines_without_a_token_of_their_own_keep_their_ids(directory, ours):
    """A blank line, and one that is repeated later, are ids that no text produces."""
    lines = [*ours.tokens[:-1], "", "the", "", ours.tokens[-1]]
    (directory / "vocab.txt").write_text("\n".join(lines), "utf-8")
    ids = {token: i for i, token in enumerate(lines) if token}
    edit(directory / "tokenizer.json", lambda c: c["model"].update(vocab=ids))
    found = [read(directory)]
    (directory / "tokenizer.json").unlink()
    found.append(read(directory))
    for tokenizer in found:
        assert tokenizer.tokens[899:902] == ["[unused_899]", "the", "[unused_901]"]
        assert tokenizer.vocab_size == 903 and tokenizer.num_unused == 3
        assert tokenizer.encode_batch(["the"])[0].tolist() == [900]


def test_a_vocabulary_alone_follows_the_rules_of_its_program(directory, ours):
    (directory / "tokenizer.json").unlink()
    assert read(directory).fingerprint == ours.fingerprint
    edit(directory / "tokenizer_config.json", lambda c: c.update(do_lower_case=False))
    assert read(directory).options == ours.options | {"lowercase": False}
    (directory / "tokenizer_config.json").unlink()
    assert read(directory).fingerprint == ours.fingerprint
    google = files.read_google_vocabulary(directory / "vocab.txt").options
    assert google == ours.options | {"max_input_chars_per_word": 200}
    (directory / "vocab.txt").unlink()
    assert read(directory) is None


@pytest.mark.parametrize(
    "tokens, lowercase",
    [("a b [unused1] <S> é", True), ("a b ##C", False), ("a É", False), ("中 ß", True)],
)
def test_upper_case_tokens_mean_a_cased_vocabulary(tokens, lowercase, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(SPECIALS + tokens.split()), "utf-8")
    for given, expected in ((None, lowercase), (not lowercase, not lowercase)):
        tokenizer = files.read_google_vocabulary(tmp_path / "vocab.txt", given)
        assert tokenizer.options["lowercase"] is expected


def test_files_that_transformers_saved_again(directory, ours):
    """transformers adds truncation and padding, and omits defaults."""

    def change(content):
        content["truncation"] = dict(
            max_length=128, strategy="LongestFirst", stride=0, direction="Right"
        )
        content["padding"] = dict(
            strategy={"Fixed": 128},
            direction="Right",
            pad_to_multiple_of=None,
            pad_id=0,
            pad_type_id=0,
            pad_token="[PAD]",
        )
        content["normalizer"]["strip_accents"] = True
        del content["model"]["type"]

    edit(directory / "tokenizer.json", change)
    (directory / "tokenizer_config.json").unlink()
    assert read(directory).fingerprint == ours.fingerprint


def test_tokens_that_another_program_added(directory, ours):
    """The three files that may name them; ids as `transformers` gives them."""
    word, marker = {"content": "covid", "id": 900}, {"content": "[E1]", "id": 901}
    (directory / "added_tokens.json").write_text('{"covid": 900, "[E1]": 901}', "utf-8")
    slow = read(directory)
    (directory / "added_tokens.json").unlink()
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
    added = [token | flags | {"special": False} for token in (word, marker)]
    edit(directory / "tokenizer.json", lambda content: content["added_tokens"].extend(added))
    assert read(directory).fingerprint == slow.fingerprint != ours.fingerprint
    ids = [i.tolist() for i in ours.encode_batch(["the ", "s in "])]
    text = "the Covids in [E1]"
    found, spans = slow.encode_aligned(text)
    assert found.tolist() == [*ids[0], 900, *ids[1], 901]
    batch = slow.encode_batch(["the ", text, ""])
    assert [i.tolist() for i in batch] == [ids[0], found.tolist(), []]
    assert spans[[-1, len(ids[0])]].tolist() == [[14, 18], [4, 9]]
    assert slow.decode(found) == "the covid s in [E1]" and slow.is_word_start_V[900:].all()
    again = directory / "again"
    files.write_huggingface_tokenizer(slow, again / "hf", BERT, 512)
    slow.save(again / "ours")
    # A run names the directory of a copy as its vocabulary.
    options = {key: value for key, value in ours.options.items() if key != "kind"}
    named = tokenizers.from_file("wordpiece", again / "ours", **options)
    for copy in (read(again / "hf"), tokenizers.load(again / "ours"), named):
        assert copy.fingerprint == slow.fingerprint and copy.added.keys() == {900, 901}


def test_tokens_added_to_an_export_of_ours(ours, directory):
    """Our own options file, which says nothing of them, does not hide them."""
    ours.save(directory)
    (directory / "added_tokens.json").write_text('{"covid": 900}', "utf-8")
    assert read(directory).added.keys() == {900}


def test_an_added_token_with_the_id_of_another_is_refused(directory):
    added = {"900": {"content": "the"}}
    edit(directory / "tokenizer_config.json", lambda c: c.update(added_tokens_decoder=added))
    with pytest.raises(UserError, match="'the' has the id 900, which must be its id in the vocab"):
        read(directory)


def test_a_directory_that_does_not_name_its_case(directory, ours):
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer_config.json").unlink()
    assert files.read_huggingface_tokenizer(directory, BERT)[1] == []
    tokens = ["The" if token == "the" else token for token in ours.tokens]
    (directory / "vocab.txt").write_text("\n".join(tokens), "utf-8")
    tokenizer, (note,) = files.read_huggingface_tokenizer(directory, BERT)
    assert not tokenizer.options["lowercase"]
    assert "1 of its 900 tokens have capital letters, such as 'The', so text keeps its case" in note


def set_in(section, **values):
    return lambda content: content[section].update(values)


def remove_mask(content):
    vocabulary = content["model"]["vocab"]
    vocabulary["[mask]"] = vocabulary.pop("[MASK]")


def add_token(content):
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 950, "content": "[E1]"})


def byte_level(content):
    content["model"] = {"type": "BPE", "vocab": {"<s>": 0}, "merges": []}
    content["normalizer"] = None


@pytest.mark.parametrize(
    "change, words",
    [
        (byte_level, "is not BERT's WordPiece"),
        (remove_mask, r"has no \[MASK\]"),
        (set_in("normalizer", strip_accents=False), "strip_accents of its normalizer is False"),
        (set_in("normalizer", handle_chinese_chars=False), "handle_chinese_chars .* only True"),
        (set_in("pre_tokenizer", type="Whitespace"), "type of its pre_tokenizer is 'Whitespace'"),
        (lambda c: c.update(pre_tokenizer=None), "type of its pre_tokenizer is None"),
        (set_in("model", unk_token="<unk>"), "unk_token of its model"),
        (set_in("model", continuing_subword_prefix="@@"), "only '##'"),
        (add_token, r"added token '\[E1\]' has the id 950, .* after its 900 tokens"),
    ],
)
def test_other_tokenizers_are_refused(change, words, directory):
    edit(directory / "tokenizer.json", change)
    with pytest.raises(UserError, match=words) as error:
        read(directory)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "key", ["strip_accents", "tokenize_chinese_chars", "do_basic_tokenize", "do_lower_case"]
)
def test_configs_that_differ_are_refused(key, directory):
    edit(directory / "tokenizer_config.json", lambda content: content.update({key: False}))
    with pytest.raises(UserError, match=f"tokenizer_config.json: {key} is False; it must be True"):
        read(directory)


def test_a_damaged_sentencepiece_export_is_refused(tmp_path):
    files.write_huggingface_tokenizer(train("bpe", True), tmp_path, BERT, 512)
    model = tmp_path / "sentencepiece.model"
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(UserError, match="sentencepiece.model is damaged or another program's"):
        read(tmp_path)
    (tmp_path / files.OPTIONS_FILE).unlink()
    with pytest.raises(UserError, match="needs bert_jax_tokenizer.json beside it"):
        read(tmp_path)
