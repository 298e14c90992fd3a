"""Loads exported tokenizers with the `transformers` on the path; prints what they give as JSON.

python tests/interop/load_tokenizers.py EXPORTED SAVED < TEXTS

Each directory of EXPORTED is loaded, and saved again to SAVED.
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

SPACED = "He can not , it is said , come ."


def main(exported: Path, saved: Path) -> None:
    given = json.load(sys.stdin)
    found = {}
    for path in exported.iterdir():
        tokenizer = AutoTokenizer.from_pretrained(path)
        found[path.name] = {
            "class": type(tokenizer).__name__,
            "max_length": tokenizer.model_max_length,
            "ids": [tokenizer(text)["input_ids"] for text in given["texts"]],
            "pair": dict(tokenizer(*given["pair"])),
            "decoded": tokenizer.decode(tokenizer(SPACED)["input_ids"], skip_special_tokens=True),
        }
        tokenizer.save_pretrained(saved / path.name)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
