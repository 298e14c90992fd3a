"""Texts, options and stores that `prepare` refuses, and the messages."""

import shutil

import pytest

from bert_jax.base.errors import UserError
from bert_jax.store.manifest import check_case
from tests.refusals import command
from tests.stores import VOCAB_SIZE, make, options, write_speeches


@pytest.mark.parametrize("is_started", [False, True])
def test_foreign_files_are_not_touched(is_started, speeches, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    if is_started:
        (tmp_path / "unfinished").mkdir()
    with pytest.raises(UserError, match="holds thesis.tex, which is not part of"):
        make(options(speeches), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_linked_directory_is_not_written_to(speeches, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokens-00000.bin").write_text("years of work")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "train").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="holds train, which is not part of"):
        make(options(speeches), tmp_path / "store")
    assert (tmp_path / "mine" / "tokens-00000.bin").read_text() == "years of work"


def test_text_without_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    for policy, words in (
        ("refuse", "a.jsonl: the file has no document"),
        ("skip", "the input has no document with text in it"),
    ):
        with pytest.raises(UserError, match=words):
            make(options(f"{tmp_path}/a.jsonl", bad_documents=policy), tmp_path / "store")
    assert not (tmp_path / "store" / "metadata.json").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"lowercase": False}, "data.lowercase=True, not False"),
        ({"heldout_fraction": 0.1}, "data.heldout_fraction=0.05, not 0.1"),
        ({"tokenizer": "sentencepiece"}, "made with data"),
        ({"text_field": "body"}, "data.text_field='text', not 'body'"),
    ],
)
def test_a_store_of_other_options_is_refused(change, words, store, speeches):
    with pytest.raises(UserError, match=words):
        make(options(speeches, **change), store[1])


def test_a_store_of_other_texts_is_refused(tmp_path):
    pattern = write_speeches(tmp_path / "texts", 5)
    output = tmp_path / "store"
    metadata = make(options(pattern, heldout_fraction=0.0), output)
    data = options(pattern, heldout_fraction=0.0, num_processes=3)
    assert make(data, output) == metadata
    with pytest.raises(UserError, match="model.vocab_size=400, not 401"):
        make(data, output, VOCAB_SIZE + 1)
    with pytest.raises(UserError, match="made from other texts"):
        make(options("sotu", heldout_fraction=0.0), output)
    moved = shutil.copytree(tmp_path / "texts", tmp_path / "moved")
    moved_data = options(f"{moved}/*.txt", heldout_fraction=0.0)
    assert make(moved_data, output) == metadata
    max(moved.iterdir()).write_text("Other text.")
    with pytest.raises(UserError, match="made from other texts"):
        make(moved_data, output)
    first = min((tmp_path / "texts").iterdir())
    content = first.read_text()
    first.write_text(content + "More.")
    with pytest.raises(UserError, match=f"{first.name} was .* bytes, is .* bytes"):
        make(data, output)
    first.unlink()
    with pytest.raises(UserError, match=f"{first.name} was .* bytes, is missing"):
        make(data, output)
    for path in (tmp_path / "texts").iterdir():
        path.unlink()
    # Training continues without the texts if `data.input` is unchanged.
    assert make(data, output) == metadata
    with pytest.raises(UserError, match="made from other texts .data.input was"):
        make(options("nothing", heldout_fraction=0.0), output)


def test_a_cased_vocabulary_is_refused_with_lower_casing(tmp_path):
    path = tmp_path / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "the", "##s", "a"]
    path.write_text("".join(f"{piece}\n" for piece in pieces))
    check_case(options(vocab=str(path)))
    path.write_text("".join(f"{piece}\n" for piece in [*pieces, "The"]))
    check_case(options(vocab=str(path), lowercase=False))
    with pytest.raises(UserError, match="lowercase is True, but 25% of the pieces in .*vocab.txt"):
        check_case(options(vocab=str(path)))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "--output=DIR is missing"),
        (["--outptu=OUT"], "unknown flag --outptu; did you mean --output?"),
        (["--output=/dev/null/store"], "/dev/null/store: Not a directory"),
        (["--output=OUT", "--", "--region=x"], "unexpected argument '--region=x': flags are"),
    ],
)
def test_mistakes_in_the_command(arguments, words, tmp_path):
    message = command("prepare", *(a.replace("OUT", str(tmp_path / "out")) for a in arguments))
    assert message.startswith(words)
