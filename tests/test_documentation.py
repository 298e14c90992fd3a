"""The documentation names only links, files, commands, flags and keys that exist."""

import re
import runpy
from pathlib import Path

import pytest

import bert_jax
from bert_jax import load_config
from bert_jax.config import default_config, fields, finetune_config, finetuning, validate
from bert_jax.interop import formats
from tests.interop.small_bert import make_finetuned

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "launch" / "README.md"]
FOLDERS = ("bert_jax", "benchmarks", "configs", "docs", "launch", "tests")
FILES = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
CONFIGS = [path for path in FILES if path.is_relative_to(ROOT / "configs")]


def anchors(page):
    """Returns the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_page(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_files_that_are_named_exist():
    for file in [*PAGES, *FILES]:
        # Other files may name files that they make.
        folders = "|".join(FOLDERS) if file in [*PAGES, *CONFIGS] else "docs"
        for path in re.findall(rf"(?<![\w/])(?:{folders})/[\w./*]*\w", file.read_text()):
            assert list(ROOT.glob(path)), f"{file}: {path}"
    for path in re.findall(r"[\w/]+/\w+\.py", (ROOT / "docs" / "architecture.md").read_text()):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "bert_jax")), path


def test_the_keys_and_flags_of_commands_exist():
    configs = default_config(), *map(finetune_config, ("table", "embedding", "squad", "ner"))
    keys = {path for config in configs for path in fields(config)}
    keys |= {path.rpartition(".")[0] for path in keys}
    keys |= {f"train.stages.{key}" for key in default_config().train.stages[0]}
    keys |= {*load_config("studies")}
    shared = (ROOT / "bert_jax" / "config" / "cli.py").read_text()
    for file in [*PAGES, *CONFIGS]:
        text = file.read_text()
        for key in re.findall(r"(?:--|`)config\.(?!json)([a-z][\w.\[\]]*\w)", text):
            assert re.sub(r"\[\d+\]", "", key) in keys, f"{file}: config.{key}"
        text = text.replace("\\\n", " ")
        for command, arguments in re.findall(r"-m bert_jax\.(\w+)([^`\n]*)", text):
            defined = (ROOT / "bert_jax" / f"{command}.py").read_text() + shared
            if command == "prepare":
                defined += "".join(f'"{key.rpartition(".")[2]}"' for key in keys)
            for flag in re.findall(r" --(\w+)", arguments.partition(" -- ")[0]):
                is_defined = flag in ("config", "finetune", "help") or f'"{flag}"' in defined
                assert is_defined, f"{file}: bert_jax.{command} --{flag}"


def test_the_page_of_keys_is_what_the_code_writes():
    written = runpy.run_path(str(ROOT / "docs" / "write_config_keys.py"))["reference"]()
    current = (ROOT / "docs" / "config_keys.md").read_text() == written
    assert current, "run `python docs/write_config_keys.py`"


def test_the_tables_of_the_api_are_what_the_code_writes():
    page = (ROOT / "docs" / "api.md").read_text()
    written = runpy.run_path(str(ROOT / "docs" / "write_api.py"))["with_tables"](page)
    assert page == written, "run `python docs/write_api.py`"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_examples_of_the_api(finished, tmp_path, monkeypatch, capsys):
    """The first one trains, which takes an hour: its configs are checked instead."""
    trained = {}
    monkeypatch.setattr(bert_jax, "train", lambda config, path: trained.update({path: config}))
    monkeypatch.setattr(bert_jax, "finetune", bert_jax.train)
    labels = make_finetuned("sequence_classification", ("no", "yes"))
    formats.write(labels, tmp_path / "labels", "huggingface")
    paths = {"runs/mine": finished, "runs/labels": tmp_path / "labels"}
    page = (ROOT / "docs" / "api.md").read_text()
    training, use = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(training, names := {})
    validate(trained["runs/mine"], is_given=True)
    finetuning.validate(trained["runs/labels"])
    for name, path in paths.items():
        use = use.replace(f'"{name}"', repr(str(path)))
    exec(use, names)
    assert names["vectors"].shape == (2, 16) and names["best"].label in ("no", "yes")
    assert capsys.readouterr().out.count("\n") == 3 + 1
