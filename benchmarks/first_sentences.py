"""Makes a sequence-to-sequence task from the built-in corpus: a paragraph's first sentence.

    python benchmarks/first_sentences.py --output=DIR
    python -m bert_jax.finetune --config=configs/finetune/seq2seq.py --config.data.input=DIR \\
        --config.init_from=BART --workdir=RUN --config.seq2seq.lead_sentences=1

The target is the first sentence of a paragraph of at least four sentences; the source is the rest.
Every tenth address is for validation, and the one after it for testing, so no address is in two
splits.
"""

import argparse
import json
from pathlib import Path

from bert_jax.text.sentences import split_sentences
from bert_jax.text.sources import built_in_files

MIN_SENTENCES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for number, path in enumerate(built_in_files()):
        split = {0: "validation", 1: "test"}.get(number % 10, "train")
        for paragraph in path.read_text().split("\n\n"):
            first, *rest = split_sentences(paragraph) or [""]
            if len(rest) >= MIN_SENTENCES - 1:
                row = {"source": " ".join(rest), "target": first}
                rows[split].append(json.dumps(row, ensure_ascii=False) + "\n")
    for split, lines in rows.items():
        (args.output / f"{split}.jsonl").write_text("".join(lines))
        print(f"{split}: {len(lines):,} rows")


if __name__ == "__main__":
    main()
