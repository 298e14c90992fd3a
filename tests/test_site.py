"""The documentation site is built without a network; its links and its reference are complete."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.config import default_config, fields, finetune_config
from tests.test_documentation import PAGES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Builds the site. With --strict, a broken link is an error."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://localhost:9"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_reference_has_every_key_with_its_default_and_meaning(site):
    for page, config in (
        ("pretraining_keys", default_config()),
        ("finetuning_keys", finetune_config("squad")),
    ):
        text = (site / "reference" / page / "index.html").read_text()
        for path, field in fields(config).items():
            row = text.partition(f'id="{path}"')[2].partition("</tr>")[0]
            plain = html.unescape(re.sub("<[^>]*>", "", row))
            assert field.elements is not None or repr(field.default) in plain, path
            assert field.comment.partition(".")[0].replace("`", "") in plain, path


def test_the_reference_has_the_commands_and_their_flags(site):
    text = (site / "reference" / "commands" / "index.html").read_text()
    for expected in ('id="compile_check"', "--price_per_chip_hour", 'id="main"', "--coordinator"):
        assert expected in text
    assert str(ROOT) not in text


def test_the_commands_of_the_pages_have_flags_that_exist(site):
    text = (site / "reference" / "commands" / "index.html").read_text()
    sections = re.split(r'<h2 id="(\w+)"', text)[1:]
    flags = {
        name: {"help", "config", "finetune", *re.findall(r"<td><code>--(\w+)</code>", section)}
        for name, section in zip(sections[::2], sections[1::2], strict=True)
    }
    pages = "\n".join(page.read_text() for page in PAGES).replace("\\\n", " ")
    commands = re.findall(r"-m bert_jax\.(\w+)([^`\n]*)", pages)
    assert len(commands) > 60
    for name, arguments in commands:
        own, _, _ = arguments.partition(" -- ")
        assert set(re.findall(r" --(\w+)", own)) <= flags[name], f"bert_jax.{name}{arguments}"


def test_a_name_in_the_first_column_is_not_broken(site, browser):
    assert "site.css" in (site / "continue" / "index.html").read_text()
    sheets = sorted(site.glob("assets/stylesheets/main*.css"))
    words = "many words beside it " * 20
    row = f"<tr><td><code>continue:decay</code></td><td>{words}</td></tr>"
    body = f'<body><div class="md-typeset" style="width: 20em"><table>{row}</table></div></body>'
    lines = [
        browser(
            "".join(f"<style>{sheet.read_text()}</style>" for sheet in used) + body,
            "document.querySelector('code').getClientRects().length",
        )
        for used in (sheets, [*sheets, site / "site.css"])
    ]
    assert lines[0] > lines[1] == 1


def test_pages_load_nothing_from_other_servers(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, page
