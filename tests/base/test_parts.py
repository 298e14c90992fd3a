"""A directory is data: what its files name runs no code from outside the package."""

import json
import shutil
import sys

import pytest

import bert_jax
from bert_jax import convert
from bert_jax.base import parts
from bert_jax.base.errors import UserError
from bert_jax.commands.pretrain import pretrain
from tests import forked, runs
from tests.refusals import one_sentence
from tests.small_run import small_run

PAYLOAD = "downloaded.payload:Part"


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """Returns a working directory with `downloaded/`: a run, its export, and code beside them."""
    folder = tmp_path_factory.mktemp("working")
    downloaded = folder / "downloaded"
    shutil.copytree(finished, downloaded / "run")
    convert.convert(str(downloaded / "run"), str(downloaded / "hf"), "huggingface")
    (downloaded / "payload.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    return folder


def attack(folder, key, name):
    """Names the payload in the stored config of a copy of the run, or of its export."""
    copy = folder / "downloaded" / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "downloaded" / name, copy)
    path = copy / ("config.json" if name == "run" else "bert_jax_training.json")
    stored = json.loads(path.read_text())
    section = stored if name == "run" else stored["config"]
    *above, last = key.split(".")
    for part in above:
        section = section[part]
    section[last] = [PAYLOAD, *section[last][1:]] if last == "terms" else PAYLOAD
    path.write_text(json.dumps(stored))


def run(folder, command):
    """Runs a command in the folder; returns its status and its errors."""
    module, *arguments = command.split()
    env = runs.environment()
    program = forked.Program(f"bert_jax.{module}", arguments, cwd=folder, env=env)
    _, errors = program.communicate(120)
    # runpy warns of modules that this process had loaded before.
    return program.returncode, errors[errors.find("error: ") :]


OPENS = {
    "predict": "predict --model=downloaded/copy fill-mask [MASK]",
    "convert": "convert --model=downloaded/copy --output=out --to=bert_jax",
    "init_from": "main --config=tiny --config.init_from=downloaded/copy --workdir=new",
    "teacher": "main --config=distilbert:tiny --config.objective.teacher=downloaded/copy "
    "--workdir=new",
    "finetune": "finetune --config=finetune/glue:mrpc --config.init_from=downloaded/copy "
    "--config.data.input=nothing --workdir=new",
    "evaluate": "evaluate --model=downloaded/copy --data=*.txt",
    "report": "report --workdir=downloaded/copy --output=page.html",
    "show_batch": "show_batch --workdir=downloaded/copy",
    "main": "main --workdir=downloaded/copy",
    "continue": "main --config=continue:downloaded/copy --workdir=new",
}
KEYS = ("family", "objective.terms", "data.rows", "data.corruption")


@pytest.mark.parametrize(
    ("command", "key", "name"),
    [
        *(("main", key, "run") for key in KEYS if key != "objective.terms"),
        *((command, "objective.terms", "run") for command in OPENS if command != "show_batch"),
        ("show_batch", "data.rows", "run"),
        *(("continue", key, "hf") for key in ("data.rows", "data.corruption")),
        *((command, "objective.terms", "hf") for command in ("predict", "convert", "finetune")),
    ],
)
def test_no_command_runs_code_that_a_stored_file_names(command, key, name, folder):
    attack(folder, key, name)
    sentence = one_sentence(*run(folder, OPENS[command]))
    assert f"config.{key} is {PAYLOAD!r} in a stored file" in sentence
    assert f"--part={PAYLOAD}" in sentence
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("command", "flag"),
    [("main", "--part"), ("main", "--config.family"), ("continue", "--part")],
)
def test_a_part_that_the_command_names_is_imported(command, flag, folder):
    attack(folder, "family", "run")
    _, errors = run(folder, f"{OPENS[command]} {flag}={PAYLOAD}")
    assert "which cannot be imported: module 'downloaded.payload' has no" in errors
    (folder / "ran").unlink()


def test_a_part_is_named_by_its_module(folder):
    _, errors = run(folder, f"{OPENS['main']} --part=payload")
    assert errors == "error: flag --part=['payload']: it must be MODULE:NAME\n"


def test_python_names_parts_too(folder, monkeypatch):
    attack(folder, "family", "run")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(parts, "_trusted", set())
    path = str(folder / "downloaded" / "copy")
    with pytest.raises(UserError, match="would run code from outside bert_jax"):
        bert_jax.load(path)
    assert "downloaded.payload" not in sys.modules
    with pytest.raises(UserError, match="cannot be imported"):
        bert_jax.load(path, parts=(PAYLOAD,))
    (folder / "ran").unlink()


def test_an_unknown_family_is_refused_before_training(texts, tmp_path):
    with pytest.raises(UserError, match="config.family is 'foo'; it must be one of bert, spanbert"):
        pretrain(small_run(texts, family="foo"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
