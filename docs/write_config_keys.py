"""Writes config_keys.md, the reference of all keys: `python docs/write_config_keys.py`."""

from collections.abc import Mapping
from pathlib import Path

from bert_jax.config import fields, finetune_config
from bert_jax.config.schema import Field

PAGE = Path(__file__).with_name("config_keys.md")
INTRODUCTION = """# Config keys

`python docs/write_config_keys.py` writes this page. Each key is also a flag, such as
`--config.train.num_steps=200`, and `python -m bert_jax --explain=KEY` prints its meaning.
"""


def reference() -> str:
    """Returns the page."""
    pretraining, finetuning = fields({}), {}
    # Fine-tuning configs of different tasks have different keys.
    for task in ("table", "embedding", "squad", "ner", "multiple_choice"):
        finetuning |= fields(finetune_config(task))
    both = {key: field for key, field in pretraining.items() if finetuning.get(key) == field}
    page = INTRODUCTION
    for title, found in (
        ("Pre-training and fine-tuning", both),
        ("Pre-training", pretraining),
        ("Fine-tuning", finetuning),
    ):
        page += f"\n## {title}\n"
        page += _tables({k: f for k, f in found.items() if found is both or k not in both})
    return page


def _tables(found: Mapping[str, Field]) -> str:
    """Returns a table for each section."""
    sections: dict[str, list[str]] = {}
    for path, field in found.items():
        rows = sections.setdefault(path.rpartition(".")[0], [])
        default = "" if field.elements else f"<br>`{field.default!r}`"
        rows.append(_row(f"`{path}`{default}", field))
        for key, element in (field.elements or {}).items():
            rows.append(_row(f"`{path}[i].{key}`<br>`{element.default!r}`", element))
    head = "\n| key, default | meaning |\n|---|---|\n"
    return "".join(head + "".join(rows) for rows in sections.values())


def _row(key: str, field: Field) -> str:
    # A special token such as <s> is no tag.
    meaning = field.description.replace("<", "&lt;").replace("|", "\\|")
    return f"| {key} | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(reference())
