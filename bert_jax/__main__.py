"""Lists the commands and the configs: `python -m bert_jax`.

`--config=NAME` prints every value of a config, as changed by other flags such as
`--config.train.num_steps=200`. `--explain=KEY` prints what a key means, such as data.input, or all
keys of a section, such as data. `--version` prints the version.
"""

import ast
import json
import sys
from pathlib import Path

from absl import flags
from rich.table import Table

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say, terminal
from bert_jax.config import cli, fields, flatten, to_dict
from bert_jax.config.command_line import config_files, nearest


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


def print_config(_) -> None:
    for key, value in flatten(to_dict(flags.FLAGS.config)):
        print(f"config.{key} = {json.dumps(value)}")


def explain(_) -> None:
    name = flags.FLAGS.explain.removeprefix("config.")
    pretraining = fields({})
    finetuning = fields({"task": ""})
    found = []
    for kind, keys in (("pre-training", pretraining), ("fine-tuning", finetuning)):
        for key, field in keys.items():
            if key != name and not key.startswith(f"{name}."):
                continue
            if keys is finetuning and pretraining.get(key) == field:
                continue
            found.append(key)
            say(f"config.{key} ({kind}; by default {field.default!r})")
            say(f"    {field.description}")
    if not found:
        raise UserError(f"there is no key {name!r}{nearest(name, [*pretraining, *finetuning])}")


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"bert_jax {bert_jax.__version__}")
        return
    if any(argument.lstrip("-").startswith("explain") for argument in sys.argv[1:]):
        flags.DEFINE_string("explain", None, "The key to explain.", required=True)
        cli.run(explain)
    if len(sys.argv) > 1:
        cli.define_config_flag()
        cli.run(print_config)
    console = terminal()
    for title, found in (
        ("python -m bert_jax.COMMAND; --help lists its flags", commands()),
        ("--config=NAME; python -m bert_jax --explain=KEY describes a key", config_files()),
    ):
        table = Table("", "", title=title, title_justify="left", box=None, show_header=False)
        for name, file in found.items():
            table.add_row(name, first_line(file))
        console.print(table)
        console.print()


if __name__ == "__main__":
    main()
