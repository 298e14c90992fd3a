"""Adds the pages of the site that are made from code or from files outside docs/.

MkDocs calls the functions `on_...`; see mkdocs.yml.
"""

import ast
import posixpath
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

from bert_jax.__main__ import commands
from bert_jax.config import fields, finetune_config
from bert_jax.config.command_line import config_files
from bert_jax.config.schema import Field

ROOT = Path(__file__).parents[1]
# Files outside docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "launch/README.md": "launch.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "LICENSE.txt",
    "docs/tour.ipynb": "tour.md",
}
# Files that the site has; links to others, such as scripts, become text.
_SHOWN = (".md", ".txt", ".png")
# The kinds of fine-tuning configs; their keys differ.
_TASKS = ("table", "squad", "ner", "multiple_choice")


def on_files(files, config):
    """Adds the pages."""
    pages = {}
    for source, page in PAGES.items():
        if source.endswith(".ipynb"):
            text, resources = MarkdownExporter().from_filename(ROOT / source)
            pages |= resources["outputs"]
        else:
            text = (ROOT / source).read_text()
        pages[page] = with_site_links(text, source)
    pages["reference/commands.md"] = commands_page()
    pages["reference/configs.md"] = configs_page()
    pages["reference/pretraining_keys.md"] = keys_page("pre-training", fields({}))
    found = {}
    for task in _TASKS:
        found |= fields(finetune_config(task))
    pages["reference/finetuning_keys.md"] = keys_page("fine-tuning", found)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown, page, **_):
    """Lets the links of a file in docs/ point to pages of the site."""
    if page.file.generated_by:
        return markdown
    return with_site_links(markdown, f"docs/{page.file.src_uri}")


def with_site_links(markdown: str, source: str) -> str:
    """Rewrites the links between files of the repository for the site, where pages have no folder.

    Args:
      markdown: The text of the file.
      source: The path of the file in the repository.
    """

    def rewritten(match: re.Match) -> str:
        text, link, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        target = PAGES.get(path, path.removeprefix("docs/"))
        return f"[{text}]({target}{anchor or ''})" if target.endswith(_SHOWN) else text

    return re.sub(r"\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)", rewritten, markdown)


def keys_page(kind: str, found: Mapping[str, Field]) -> str:
    """Returns the reference of the keys of a kind of config, a table for each section."""
    sections: dict[str, list[str]] = {}
    for path, field in found.items():
        section, _, key = path.rpartition(".")
        rows = sections.setdefault(f"config.{section}".rstrip("."), [])
        rows.append(_row(path, key, field))
        for inner, element in (field.elements or {}).items():
            rows.append(_row(f"{path}.{inner}", f"{key}[i].{inner}", element))
    lines = [f"# Keys of {kind}", "", "Each key is also a flag: `--config.train.num_steps=200`."]
    for section, rows in sections.items():
        lines += ["", f"## {section}", "", "| key, default | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _row(path: str, key: str, field: Field) -> str:
    # A special token such as <s> is no tag.
    meaning = field.description.replace("<", "&lt;")
    default = "" if field.elements is not None else f"<br>`{field.default!r}`"
    cells = (f'<a id="{path}"></a>`{key}`{default}', meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def commands_page() -> str:
    """Returns the reference of the commands: their docstrings and flags."""
    lines = ["# Commands", "", "Every command has `--help`.", ""]
    for name, file in commands().items():
        lines += [f"## {name}", "", ast.get_docstring(ast.parse(file.read_text())), ""]
        command = [sys.executable, "-m", f"bert_jax.{name}", "--helpxml"]
        # absl exits with status 1 after the help.
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        flags = [
            f for f in ElementTree.fromstring(done.stdout).iter("flag") if f.find("key") is not None
        ]
        if flags:
            lines += ["| flag | default | meaning |", "|---|---|---|"]
        for flag in flags:
            text = {child.tag: " ".join((child.text or "").split()) for child in flag}
            meaning = text["meaning"].replace(f"{ROOT}/", "").replace("|", "\\|")
            default = f"`{text['default']}`" if text["default"] not in ("", "None", "[]") else ""
            lines.append(f"| `--{text['name']}` | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def configs_page() -> str:
    """Returns the descriptions of all configs."""
    lines = ["# Configs", "", "`--config` takes one of these names, or a file of your own.", ""]
    for name, file in config_files().items():
        lines += [f"## {name}", "", ast.get_docstring(ast.parse(file.read_text())), ""]
    return "\n".join(lines)
