"""Conversions between all kinds of directories, and the contents of these directories."""

import os
import shutil
import signal

import numpy as np
import pytest
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.inference.bert import Bert
from bert_jax.interop import formats
from tests.interop.small_bert import (
    copies,
    drop_tensors,
    edit_tensors,
    make_finetuned,
    make_pretrained,
    make_tokenizer,
    same_weights,
    write_google,
)

KINDS = tuple(formats.WRITERS)


@pytest.fixture(params=["disk", "bucket"])
def folder(request, tmp_path):
    """An empty folder on a disk or in a bucket."""
    is_local = request.param == "disk"
    return tmp_path if is_local else epath.Path(f"gs://{request.getfixturevalue('bucket')}")


def test_chain_of_conversions_keeps_every_bit(tmp_path):
    pretrained = make_pretrained(seed=1)
    # Values that arithmetic would change.
    pretrained.weights["bert/pooler/dense/bias"][:4] = [1e-42, -0.0, np.float32(1) / 3, 3e38]
    training = {"step": 7, "config": {}, "corpus": {"documents": 3}, "results": {"mlm_loss": 2.5}}
    original = copies(pretrained.weights)
    pretrained.training = training
    kinds = [kind for kind in KINDS if kind != "sentence_transformers"]  # It has no heads.
    for i, kind in enumerate([*kinds, *kinds[::-1]]):
        formats.write(pretrained, tmp_path / str(i), kind)
        pretrained = formats.read(tmp_path / str(i))
        assert pretrained.warnings == []
    assert same_weights(pretrained.weights, original)
    assert np.signbit(pretrained.weights["bert/pooler/dense/bias"][1])
    assert pretrained.model == make_pretrained().model
    assert pretrained.tokenizer.fingerprint == make_tokenizer().fingerprint
    assert pretrained.training == training


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(
    "kind, family",
    [
        ("google", "bert"),
        ("huggingface", "modernbert"),
        ("bert_jax", "modernbert"),
        # Two directories.
        ("huggingface", "electra"),
    ],
)
def test_a_model_is_described_without_its_weights(kind, family, tmp_path):
    parts = {"terms": ("generator", "replaced_token"), "generator_size": 1 / 3}
    pretrained = make_pretrained(family=family, **parts if family == "electra" else {})
    pretrained.training = {} if kind == "google" else {"step": 7}
    if kind == "google":
        (tmp_path / "model").mkdir()
        write_google(pretrained, tmp_path / "model")
    else:
        formats.write(pretrained, tmp_path / "model", kind)
    described, read = formats.describe(tmp_path / "model"), formats.read(tmp_path / "model")
    assert described.weights == {} and described.tokenizer is None
    for name in ("source", "model", "family", "terms", "training"):
        assert getattr(described, name) == getattr(read, name), name


def test_every_file_can_be_read_by_those_who_may_read_the_others(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    names = ("model.safetensors", "vocab.txt", "README.md")
    assert len({(tmp_path / "hf" / name).stat().st_mode for name in names}) == 1


def test_a_padded_vocabulary_is_cut(tmp_path):
    pretrained = make_pretrained(vocab_size=32)
    full = copies(pretrained.weights)
    pretrained.complete()
    assert "the last 4" in pretrained.warnings[0]
    formats.write(pretrained, tmp_path / "out", "huggingface")
    found = formats.read(tmp_path / "out")
    assert found.model["vocab_size"] == 28
    for name in ("bert/embeddings/word_embeddings", "mlm/output_bias"):
        np.testing.assert_array_equal(found.weights[name], full[name][:28])


def test_tokens_without_a_row_must_not_occur_in_text():
    with pytest.raises(
        UserError, match="27 rows of word embeddings but .* 28 tokens, and none for '.'"
    ):
        make_pretrained(vocab_size=27).cut_padding()
    # A summarizer has no row for the mask, which comes last.
    rows = make_tokenizer("roberta").vocab_size - 1
    summarizer = make_pretrained(family="roberta", vocab_size=rows)
    summarizer.cut_padding()
    assert summarizer.model["vocab_size"] == rows
    bert = Bert(summarizer)
    assert bert.encode("the a").shape == (12,)
    for use in (
        lambda: bert.fill_mask("the <mask>"),
        lambda: bert.score("the"),
    ):
        with pytest.raises(UserError, match="has no row for <mask>"):
            use()


def test_the_folders_of_the_text_and_the_words_are_left_out(tmp_path):
    formats.write(make_pretrained(), tmp_path / "run", "bert_jax")
    paths = {"input": ["/home/ada/a.txt"], "vocab_path": "/home/ada/v.txt", "add_tokens": "/ada/w"}
    files.write_json(tmp_path / "run" / "corpus.json", {"options": paths})
    found = formats.read(tmp_path / "run").training["corpus"]["options"]
    assert found == {"input": ["a.txt"], "vocab_path": "v.txt", "add_tokens": "w"}


def test_untrained_heads_are_remembered(tmp_path):
    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    edit_tensors(tmp_path / "hf", lambda tensors: drop_tensors(tensors, "cls.pred"))
    pretrained = formats.read(tmp_path / "hf")
    for kind in (*KINDS, "huggingface"):
        pretrained.complete()
        assert "masked-LM head" in pretrained.warnings[-1]
        formats.write(pretrained, tmp_path / kind / "out", kind)
        pretrained = formats.read(tmp_path / kind / "out")
        shutil.rmtree(tmp_path / kind)
    formats.write(make_pretrained(), tmp_path / "trained", "huggingface")
    pretrained.complete()
    formats.write(pretrained, tmp_path / "untrained", "huggingface")
    cards = [(tmp_path / name / "README.md").read_text() for name in ("trained", "untrained")]
    assert ["fill-mask" in card for card in cards] == [True, False]
    assert "## Caveats" in cards[1] and "train before use" in cards[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_conversion_leaves_nothing(folder, kind, exists, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "no space left on device")

    pretrained = make_pretrained()
    if exists:
        (folder / "out").mkdir()
    before = list(folder.iterdir())
    monkeypatch.setattr(type(pretrained.tokenizer), "save_vocabulary", fail)
    with pytest.raises(OSError, match="no space"):
        formats.write(pretrained, folder / "out", kind)
    left = list(folder.iterdir())
    assert left == before and not [path for out in left for path in out.iterdir()]


@pytest.mark.parametrize("beside", ["", "unfinished_conversion", "unfinished_conversion/a"])
def test_files_are_not_overwritten(tmp_path, beside):
    (tmp_path / "out" / beside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "out").mkdir(exist_ok=True)
    if beside:
        (tmp_path / "out" / beside).touch()
    (tmp_path / "out" / "thesis.txt").write_text("months of work")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="exists already"):
        formats.write(make_pretrained(), tmp_path / "out", "huggingface")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "months of work"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unfinished_directory_is_replaced(folder):
    unfinished = folder / "out" / "unfinished_conversion"
    unfinished.mkdir(parents=True)
    files.write_whole(unfinished / "model.safetensors", b"half")
    output = folder / "out"
    if not files.is_remote(folder):
        output = folder / "link"
        output.symlink_to(folder / "out")
    formats.write(make_pretrained(), output, "huggingface")
    assert not unfinished.exists()
    assert same_weights(formats.read(folder / "out").weights, make_pretrained().weights)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_or_an_endless_device_in_place_of_a_file_is_not_read(tmp_path, kind):
    formats.write(make_pretrained(), tmp_path / "model", kind)
    found = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    # orbax reads its own files.
    found = [path for path in found if "checkpoints" not in path.parts]
    refused = set()
    for path in found:
        path.rename(tmp_path / "kept")
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            make(path)
            # SIGALRM would end a read that waits for ever.
            signal.alarm(60)
            try:
                formats.read(tmp_path / "model")
            except UserError as error:
                assert str(error) == f"{path} is not a regular file"
                refused.add(path.name)
            finally:
                signal.alarm(0)
            path.unlink()
        (tmp_path / "kept").rename(path)
    assert "config.json" in refused
    assert ("model.safetensors" in refused) == (kind != "bert_jax")


@pytest.mark.parametrize("num_moved", [1, 2])
def test_a_conversion_that_was_killed_while_it_moved_its_files_is_replaced(
    folder, num_moved, monkeypatch
):
    class Killed(BaseException):
        pass

    moves, move, discard = [], files.move, formats._discard

    def killed(source, target):
        if len(moves) == num_moved:
            # A killed process does not tidy up either.
            monkeypatch.setattr(formats, "_discard", lambda unfinished: None)
            raise Killed
        move(source, target)
        moves.append(target)

    (folder / "out").mkdir()
    monkeypatch.setattr(files, "move", killed)
    with pytest.raises(Killed):
        formats.write(make_pretrained(), folder / "out", "bert_jax")
    monkeypatch.setattr(files, "move", move)
    monkeypatch.setattr(formats, "_discard", discard)
    assert moves and all(path.exists() for path in moves)
    formats.write(make_pretrained(), folder / "out", "huggingface")
    formats.write(make_pretrained(), folder / "expected", "huggingface")
    names = [
        sorted(path.name for path in (folder / name).iterdir()) for name in ("out", "expected")
    ]
    assert names[0] == names[1]
    assert same_weights(formats.read(folder / "out").weights, make_pretrained().weights)


def test_a_conversion_that_fails_while_it_moves_its_files_leaves_nothing(tmp_path, monkeypatch):
    move = files.move

    def fail_last(source, target):
        if target.name == "config.json":
            raise OSError("Input/output error")
        move(source, target)

    monkeypatch.setattr(files, "move", fail_last)
    with pytest.raises(OSError, match="Input/output error"):
        formats.write(make_pretrained(), tmp_path / "out", "huggingface")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tensorflow")
def test_paths_of_files_inside_a_model_directory(folder, tmp_path_factory):
    for kind in KINDS:
        formats.write(make_pretrained(), folder / kind, kind)
    google = folder / "google"
    google.mkdir()
    for path in write_google(make_pretrained(), tmp_path_factory.mktemp("google")).iterdir():
        (google / path.name).write_bytes(path.read_bytes())
    for name in (
        "huggingface/model.safetensors",
        "google/bert_model.ckpt",
        "google/bert_model.ckpt.index",
        "bert_jax/checkpoints",
        "bert_jax/checkpoints/0",
    ):
        assert same_weights(formats.read(folder / name).weights, make_pretrained().weights), name


def test_other_directories(tmp_path):
    with pytest.raises(UserError, match="x does not exist"):
        formats.read(tmp_path / "x")
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="x holds no known model"):
        formats.read(tmp_path / "x")


def test_lowercase_applies_only_to_google(tmp_path):
    formats.write(make_pretrained(), tmp_path / "huggingface", "huggingface")
    with pytest.raises(UserError, match="leave --lowercase out"):
        formats.read(tmp_path / "huggingface", lowercase=True)


def test_fine_tuned_models_are_written_only_for_huggingface(tmp_path):
    pretrained = make_finetuned("sequence_classification", ("no", "yes"))
    with pytest.raises(UserError, match="a test is fine-tuned.*--to=huggingface"):
        formats.write(pretrained, tmp_path / "out", "bert_jax")
