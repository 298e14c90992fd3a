"""Lists the commands and the configs: `python -m bert_jax`; `--version` prints the version."""

import ast
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

import bert_jax
from bert_jax.command_line import config_files


def first_line(file: Path) -> str:
    """Returns the first line of a module's docstring, without importing the module."""
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0]


def commands() -> dict[str, Path]:
    """Returns the modules of the package that are commands, by name."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {
        file.stem: file
        for file in files
        if file.stem != "__main__" and 'if __name__ == "__main__":' in file.read_text("utf-8")
    }


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"bert_jax {bert_jax.__version__}")
        return
    console = Console()
    for title, found in (
        ("python -m bert_jax.COMMAND; --help lists its flags", commands()),
        ("--config=NAME; bert_jax/config/ describes the keys", config_files()),
    ):
        table = Table("", "", title=title, title_justify="left", box=None, show_header=False)
        for name, file in found.items():
            table.add_row(name, first_line(file))
        console.print(table)
        console.print()


if __name__ == "__main__":
    main()
