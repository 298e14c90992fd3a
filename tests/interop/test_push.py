"""Uploads to a fake of the Hugging Face Hub."""

import json
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants

from bert_jax.base.errors import UserError
from bert_jax.interop import formats, push
from tests import fake_hub
from tests.interop.small_bert import make_pretrained, same_weights
from tests.refusals import command


@pytest.fixture
def hub(monkeypatch):
    """Yields the repositories of a fake Hub that accepts the token."""
    monkeypatch.setenv("HF_TOKEN", fake_hub.TOKEN)
    with fake_hub.serve() as (url, repositories):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        yield repositories


@pytest.fixture
def trained(tmp_path):
    """An export that knows how it was trained."""
    pretrained = make_pretrained()
    pretrained.training = {"step": 7, "config": {}, "corpus": {"sources": "/home/ada/x.txt"}}
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    return tmp_path / "hf"


def test_every_file_but_the_one_with_local_paths(hub, trained, tmp_path):
    (url,) = push.push(trained, "ada/mine", None)
    assert url.endswith("/ada/mine")
    private, files = hub["ada/mine"]
    assert private is None, "the owner's settings decide"
    expected = {path.name: path.read_bytes() for path in trained.iterdir()}
    assert b"/home/ada" in expected.pop("bert_jax_training.json")
    assert files == expected and b"library_name: transformers" in files["README.md"]
    assert not any(b"/home/ada" in content for content in files.values())
    # A second upload is a commit in the same repository.
    (trained / "README.md").write_text("---\nlicense: mit\n---\n")
    push.push(trained, "ada/mine", None)
    assert b"mit" in hub["ada/mine"].files["README.md"]


def test_a_directory_of_sentence_transformers(hub, tmp_path):
    formats.write(make_pretrained(), tmp_path / "st", "sentence_transformers")
    push.push(tmp_path / "st", "ada/st", private=True)
    private, files = hub["ada/st"]
    assert private is True
    assert json.loads(files["1_Pooling/config.json"])["pooling_mode_mean_tokens"]
    for name, content in files.items():
        (tmp_path / "back" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "back" / name).write_bytes(content)
    ours, back = (formats.read(tmp_path / name) for name in ("st", "back"))
    assert same_weights(ours.weights, back.weights) and back.embedding == ours.embedding


def test_a_generator_and_its_discriminator_are_two_models(hub, tmp_path):
    terms = ("generator", "replaced_token")
    both = make_pretrained(family="electra", terms=terms, generator_size=0.5)
    formats.write(both, tmp_path / "both", "huggingface")
    push.push(tmp_path / "both", "ada/small", None)
    assert set(hub) == {"ada/small-discriminator", "ada/small-generator"}
    for part in ("discriminator", "generator"):
        config = (tmp_path / "both" / part / "config.json").read_bytes()
        assert hub[f"ada/small-{part}"].files["config.json"] == config


def test_from_a_bucket(hub, bucket):
    formats.write(make_pretrained(), f"gs://{bucket}/hf", "huggingface")
    push.push(f"gs://{bucket}/hf", "ada/mine", None)
    assert "model.safetensors" in hub["ada/mine"].files


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        (fake_hub.READ_ONLY, "the token may not write to this repository"),
        ("hf_unknown", "the Hub does not accept the token"),
    ],
)
def test_refused_tokens(hub, trained, monkeypatch, token, problem):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(UserError) as refusal:
        push.push(trained, "ada/mine", None)
    assert str(refusal.value) == (
        f"{trained} is written but not uploaded to ada/mine: {problem}; `hf upload ada/mine "
        f"{trained} --exclude bert_jax_training.json` tries again"
    )


def test_without_a_network(hub, trained, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="not uploaded to ada/mine: .*Connection refused"):
        push.push(trained, "ada/mine", None)


def test_what_is_checked_before_the_conversion(hub, monkeypatch, tmp_path):
    push.check_push("ada/mine")
    with pytest.raises(UserError, match="--push_to_hub is 'mine'; it must be OWNER/NAME"):
        push.check_push("mine")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match="no token .*: set HF_TOKEN, or run `hf auth login`"):
        push.check_push("ada/mine")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"--push_to_hub is missing: pip install -e '.\[hub\]'"):
        push.check_push("ada/mine")


def test_flags():
    for arguments, words in (
        (["--to=google", "--push_to_hub=a/b"], "is for --to=huggingface and --to=sentence_trans"),
        (["--to=huggingface", "--private"], "--private is for --push_to_hub, which is missing"),
    ):
        assert words in command("convert", "--input=x", "--output=y", *arguments)
