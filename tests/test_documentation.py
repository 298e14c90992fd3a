"""The documentation names only files, links and config keys that exist."""

import re
from pathlib import Path

import pytest

from bert_jax.config import default_config, fields, finetune_config

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "launch" / "README.md"]
CONFIGS = sorted((ROOT / "configs").rglob("*.py"))
ENTRIES = (default_config(), *map(finetune_config, ("table", "squad", "ner")))
KEYS = {path for config in ENTRIES for path in fields(config)}
KEYS |= {path.rpartition(".")[0] for path in KEYS}
KEYS |= {f"train.stages.{key}" for key in default_config().train.stages[0]}


def blocks(page):
    """Returns the shell blocks of a page, and of each whether the words "No test runs" mark it."""
    text = page.read_text()
    is_marked = "No test runs the commands of this page" in " ".join(text.split())
    found = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(block, is_marked or "# No test runs this" in block) for block in found]


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS], ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text()
    for key in re.findall(r"(?:--|`)config\.(?!json)([a-z][\w.\[\]]*\w)", text):
        assert re.sub(r"\[\d+\]", "", key) in KEYS, f"config.{key}"
    folders = "bert_jax|benchmarks|configs|docs|launch|tests"
    for path in re.findall(rf"(?<![\w/])(?:{folders})/[\w./*]*\w", text):
        assert list(ROOT.glob(path)), path
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / link).exists(), link
    for command in re.findall(r"-m bert_jax\.(\w+)", text):
        assert (ROOT / "bert_jax" / f"{command}.py").exists(), command


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_other_commands_are_marked(page):
    """tests/test_commands.py runs the unmarked ones; `.ci/run` runs `pip install` and pytest."""
    for block, is_marked in blocks(page):
        for command in block.replace("\\\n", " ").splitlines():
            assert is_marked or command.startswith(("python -m bert_jax.", "pip install ")), command


def test_the_modules_of_the_architecture_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    for path in re.findall(r"[\w/]+/\w+\.py", text):
        assert any((folder / path).exists() for folder in (ROOT, ROOT / "bert_jax")), path
