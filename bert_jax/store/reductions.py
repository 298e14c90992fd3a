"""What one process computes between and after the stages of a preparation.

See `bert_jax.store.plan` for the files.
"""

import json
from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.store import duplicates, preparation_report
from bert_jax.store.heldout import choose
from bert_jax.store.manifest import given_tokenizer, tokenizer_options
from bert_jax.store.part import Part, write_parts
from bert_jax.store.plan import (
    UNFINISHED,
    Directory,
    Plan,
    computed_once,
    read_file,
    result_name,
)
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.stages import heldout_text, part_directory, part_name
from bert_jax.store.token_store import PARTS_VERSION, SPLITS, write_metadata
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.bad_records import NUM_FIRST
from bert_jax.text.formats import FormatGuess
from bert_jax.text.named_sources import REPEAT_UNIT, repeats
from bert_jax.text.sources import Source, source_name
from bert_jax.tokenizers import extension

# The most text that a vocabulary is made from. Frequencies hardly change with more text, but more
# memory is needed, most of all by SentencePiece's trainer.
_SAMPLE_BYTES, _SENTENCEPIECE_SAMPLE_BYTES = 2**26, 2**24


def _results(output: Directory, plan: Plan, stage: str) -> Iterator[dict[str, Any]]:
    return (read_file(output, result_name(stage, n)) for n in range(len(plan.parts)))


def _starts(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()][:-1]


def choose_heldout(output: Directory, plan: Plan, data: ConfigDict) -> dict[str, Any]:
    """Returns the content of heldout.json.

    It has the index of the first document of each part among those of its source. For each source,
    it has the size of the text, the indices of the documents that are held out (None for those of
    `HeldOut`), the fraction of each document that is held out at its end, and whether documents are
    held out by their ids instead.

    Raises:
      UserError: A source has too few documents.
    """
    first_documents: list[int] = []
    sources = {}
    for name in plan.source_names:
        lengths, sources[name] = _choose_in_source(output, plan, data, name)
        # The parts of a source are consecutive.
        first_documents += _starts(lengths)
    return {"first_documents": first_documents, "sources": sources}


def _choose_in_source(
    output: Directory, plan: Plan, data: ConfigDict, name: str
) -> tuple[list[int], dict[str, Any]]:
    """Returns the number of documents of each part of a source, and what is held out of it."""
    by_id = data.heldout_by == "id" and data.heldout_fraction > 0
    num_heldout = num_bytes = 0
    lengths: list[int] = []
    guesses: dict[str, list] = {}

    def sizes() -> Iterator[int]:
        nonlocal num_heldout, num_bytes
        for number in parts_of(plan, name):
            result = read_file(output, result_name("count", number))
            num_heldout += sum(result.get("is_heldout", ()))
            num_bytes += sum(result["bytes"])
            lengths.append(len(result["characters"]))
            guesses.update(result["guesses"])
            yield from result["characters"]

    remaining = sizes()
    heldout = choose(remaining, 0 if by_id else data.heldout_fraction)
    # The other parts are counted too.
    deque(remaining, maxlen=0)
    sources = [source for source in plan.sources if source_name(source) == name]
    check_number(sum(lengths), num_bytes, data.rows, guesses, sources)
    if by_id and num_heldout < 2:
        raise UserError(
            f"data.heldout_by=id holds out {num_heldout} of {sum(lengths)} documents"
            f"{f' of {name}' if name else ''}, and two are needed: raise data.heldout_fraction, or "
            "set data.heldout_by=index"
        )
    if heldout.description:
        say(f"{name}: {heldout.description}" if name else heldout.description)
    documents = None if not heldout.description else list(heldout.documents)
    return lengths, {
        "bytes": num_bytes,
        "documents": documents,
        "end_fraction": heldout.end_fraction,
        "by_id": by_id,
    }


def holds_out_ends(heldout: dict[str, Any]) -> bool:
    """Returns whether the ends of documents are held out of any source; see `choose_heldout`."""
    return any(of_source["end_fraction"] for of_source in heldout["sources"].values())


def choose_sample(output: Directory, plan: Plan, data: ConfigDict) -> dict[str, Any]:
    """Returns the content of sample.json.

    It has the documents that the vocabulary is made from, and the index of the first document of
    each part. A document whose end is held out counts as two here.
    """
    heldout = read_file(output, "heldout.json")
    weights = vocabulary_weights(heldout, data)
    trains_sentencepiece = data.tokenizer == "sentencepiece" and not data.vocab
    sample = DocumentSample(_SENTENCEPIECE_SAMPLE_BYTES if trains_sentencepiece else _SAMPLE_BYTES)
    index, lengths = 0, []
    stage = "ends" if holds_out_ends(heldout) else "count"
    for part, result in enumerate(_results(output, plan, stage)):
        name, first = plan.source_name(part), heldout["first_documents"][part]
        chosen = heldout_text(heldout["sources"][name], data.heldout_fraction)
        lengths.append(len(result["bytes"]))
        is_heldout = result.get("is_heldout")
        for number, size in enumerate(result["bytes"]):
            if not (is_heldout[number] if is_heldout else first + number in chosen.documents):
                sample.offer(index, size, weights[name])
            index += 1
    return {"first_documents": _starts(lengths), "chosen": sample.chosen()}


def vocabulary_weights(heldout: dict[str, Any], data: ConfigDict) -> dict[str, int]:
    """Returns how often a trained vocabulary sees the text of each source, at least once.

    Args:
      heldout: The content of heldout.json.

    Returns:
      The weights by name, in units of 1 / REPEAT_UNIT. The least is 1.
    """
    sizes = {name: of_source["bytes"] for name, of_source in heldout["sources"].items()}
    found = repeats(sizes, data.sampling_exponent, data.source_weights)
    least = min(found.values())
    return {name: REPEAT_UNIT * number // least for name, number in found.items()}


def parts_with_sample(output: Directory, plan: Plan) -> list[int]:
    """Returns the numbers of the parts with documents that the vocabulary is made from."""
    sample = read_file(output, "sample.json")
    parts = np.searchsorted(sample["first_documents"], sample["chosen"], side="right") - 1
    return np.unique(parts).tolist()


def make_tokenizer(
    output: Directory, plan: Plan, data: ConfigDict, vocab_size: int
) -> dict[str, Any]:
    """Writes tokenizer/, with the vocabulary of `data.vocab`, perhaps extended, or a new one.

    Returns:
      The content of vocabulary.json.
    """
    words = {}
    if data.vocab:
        tokenizer = given_tokenizer(data, vocab_size)
        if data.add_tokens:
            words_of = extension.words_of(tokenizer)
            of_texts = map(words_of, _sentences(output, plan))
            counts = list(Counter(chain.from_iterable(of_texts)).items())
            words["tokens_per_word_before"] = extension.tokens_per_word(tokenizer, counts)
            tokenizer = extension.extend(tokenizer, data.add_tokens, counts)
            words["tokens_per_word"] = extension.tokens_per_word(tokenizer, counts)
            before, after = words.values()
            say(f"a word of the text has {after:.3f} tokens; {before:.3f} without data.add_tokens")
    else:
        say(f"training a {data.tokenizer} vocabulary of {vocab_size} tokens")
        options = {"sentencepiece_type": data.sentencepiece_type, **tokenizer_options(data)}
        tokenizer = tokenizers.train(
            data.tokenizer, _sentences(output, plan), vocab_size=vocab_size, **options
        )
        if tokenizer.num_unused:
            say(
                f"{tokenizer.num_unused:,} of the {vocab_size:,} tokens are [unusedN]: all "
                "characters of the text have tokens, and it has no more pieces that occur twice"
            )
    with files.local_output(output / "tokenizer") as local:
        tokenizer.save(local)
    return {
        "kind": tokenizer.kind,
        "fingerprint": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "unk": tokenizer.special_tokens.unk,
        "words": words,
    }


def _sentences(output: Directory, plan: Plan) -> Iterator[str]:
    for number in parts_with_sample(output, plan):
        path = output / UNFINISHED / f"{result_name('sample', number)}l"
        with files.open_input(path) as file:
            yield from map(json.loads, file)


def finish(output: Directory, plan: Plan, data: ConfigDict) -> None:
    """Completes the store: writes what describes all parts, and metadata.json last.

    Raises:
      UserError: Too few documents are left.
    """
    results = list(_results(output, plan, plan.last_stage))
    vocabulary, heldout = read_file(output, "vocabulary.json"), read_file(output, "heldout.json")
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    first_dropped: dict[str, list[str]] = {}
    guesses: dict[str, FormatGuess] = {}
    for result in results:
        counts.update(result["counts"])
        dropped.update(result["dropped"])
        removed.update(result.get("removed", {}))
        guesses |= {path: FormatGuess(*guess) for path, guess in result["guesses"].items()}
        for reason, found in result["first_dropped"].items():
            known = first_dropped.setdefault(reason, [])
            known += found[: NUM_FIRST - len(known)]
    parts = [result["splits"] for result in results]
    for name in plan.source_names:
        numbers = parts_of(plan, name)
        _join_single_document(output, plan, parts, numbers)
        _check_source(plan, name, [results[number] for number in numbers], data)
    if not any("heldout" in part for part in parts):
        files.remove_directory(output / "heldout")
    splits = {name: _sum(parts, name) for name in SPLITS}
    total = sum(split["documents"] for split in splits.values())
    if not splits["heldout"]["documents"]:
        del splits["heldout"]
    preparation_report.show(guesses, counts, data, vocabulary["unk"], total)
    if data.duplicates != "keep":
        say(duplicates.removed_text(removed, counts["tokens"]))
    formats = Counter((guess.format, guess.reason) for guess in guesses.values())
    report = {"formats": [[*guess, files] for guess, files in formats.items()], **counts}
    report |= vocabulary["words"]
    if holds_out_ends(heldout):
        report["heldout"] = "ends"
    if data.duplicates != "keep":
        report["duplicates"] = {key: removed[key] for key in duplicates.REMOVED}
    metadata = {
        "tokenizer": {key: vocabulary[key] for key in ("kind", "fingerprint")},
        "vocab_size": vocabulary["vocab_size"],
        "splits": splits,
        "dropped_documents": dict(sorted(dropped.items())),
        "first_dropped": first_dropped,
        "options": plan.options,
        "sources": plan.sources,
        "report": report,
    }
    if plan.has_parts:
        metadata = {"format_version": PARTS_VERSION, **metadata}
        has_words = data.word_boundaries == "spaces"
        for split in splits:
            numbers = [number for number, part in enumerate(parts) if split in part]
            counts = {part_name(number): parts[number][split] for number in numbers}
            names = [plan.source_name(number) for number in numbers]
            write_parts(output / split, counts, names, has_words=has_words)
    with files.local_output(output) as local:
        write_metadata(local, metadata)


def _check_source(plan: Plan, name: str, results: list[dict[str, Any]], data: ConfigDict) -> None:
    """Refuses a source with too few documents to train on, given the results of its parts."""
    parts = [result["splits"] for result in results]
    sums = [_sum(parts, split) for split in SPLITS]
    num_train, num_heldout = (counts["documents"] for counts in sums)
    total, num_bytes = num_train + num_heldout, sum(counts["bytes_of_text"] for counts in sums)
    of_source = f" of {name}" if name else ""
    least = 2 if data.rows == "pairs" else 1
    num_copies = sum(result["dropped"].get("duplicate", 0) for result in results)
    if num_train < least and num_copies:
        raise UserError(
            f"data.duplicates=exact leaves {num_train} of {total + num_copies} "
            f"documents{of_source} to train on, but data.rows={data.rows} needs {least}: "
            "set data.duplicates to keep"
        )
    guesses = {path: guess for result in results for path, guess in result["guesses"].items()}
    sources = [source for source in plan.sources if source_name(source) == name]
    check_number(total if num_train else 0, num_bytes, data.rows, guesses, sources)
    if not num_heldout and data.heldout_fraction:
        say(f"warning: the text{of_source} is too short to hold out any of it for evaluation")
    if num_train < 2 and data.rows == "pairs":
        raise UserError(
            f"data.heldout_fraction={data.heldout_fraction} leaves 1 of {total} documents"
            f"{of_source} to train on: set it to 0"
        )


def parts_of(plan: Plan, name: str) -> list[int]:
    """Returns the numbers of the parts of a source."""
    return [number for number in range(len(plan.parts)) if plan.source_name(number) == name]


def _sum(parts: list[dict[str, dict[str, int]]], split: str) -> dict[str, int]:
    keys = ("documents", "sentences", "tokens", "bytes_of_text")
    return {key: sum(part[split][key] for part in parts if split in part) for key in keys}


def _join_single_document(
    output: Directory, plan: Plan, parts: list[dict[str, dict[str, int]]], numbers: list[int]
) -> None:
    """Moves a single held-out document of a source to the end of what is trained on.

    The evaluation of pairs needs a second document. If there is also a single document to train
    on, the split is kept. `parts` is updated.

    Args:
      numbers: The parts of the source.
    """
    own = [parts[number] for number in numbers]
    with_train = [number for number in numbers if "train" in parts[number]]
    if (
        _sum(own, "heldout")["documents"] != 1
        or _sum(own, "train")["documents"] == 1
        or not with_train
    ):
        return
    (holder,) = [number for number in numbers if "heldout" in parts[number]]
    last = part_directory(output, "train", plan, with_train[-1])
    single = part_directory(output, "heldout", plan, holder)
    # Another source must not take what a killed process has joined for this one.
    joined = output / UNFINISHED / f"single-{holder:05d}"

    def join() -> dict[str, int]:
        files.remove_directory(joined)
        with files.local_output(joined) as local:
            return _join([last, single], local)

    counts = computed_once(output, result_name("single", holder), join)
    if joined.exists():
        files.move(joined, last)
    files.remove_directory(single)
    counts["bytes_of_text"] = sum(
        split["bytes_of_text"]
        for split in (parts[with_train[-1]]["train"], parts[holder]["heldout"])
    )
    parts[with_train[-1]]["train"] = counts
    del parts[holder]["heldout"]


def _join(directories: list[Directory], output: Path) -> dict[str, int]:
    """Writes the documents of several splits as one split; returns its counts."""
    parts = [Part(directory) for directory in directories]
    with SplitWriter(output, len(parts[0].token_counts)) as writer:
        for part in parts:
            for document in range(part.num_documents):
                writer.copy(part, document)
    return writer.counts


def check_number(
    documents: int, num_bytes: int, rows: str, guesses: dict[str, Any], sources: list[Source]
) -> None:
    """Refuses an input with too few documents, whose text has `num_bytes` bytes."""
    name = source_name(sources[0])
    subject = f"the source {name}" if name else "the input"
    if documents == 0:
        raise UserError(f"{subject} has no document with text in it")
    if documents == 1 and rows == "pairs":
        read = remedy = ""
        for format, reason, *_ in list(guesses.values())[:1]:
            read = f" (read as data.format={format}: {reason})"
            if format == "documents":
                remedy = "set data.format=sentences if it has a sentence per line, "
        # About forty parts, of which one or more are held out. Files may have more bytes than text.
        raise UserError(
            f"{subject} has a single document{read}, but data.rows=pairs needs sentences of "
            f"another document: give it two or more, {remedy}or divide this document with "
            f"data.max_document_characters={min(20_000, num_bytes // 40 + 1)}"
        )
