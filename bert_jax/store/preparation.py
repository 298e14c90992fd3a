"""Turns text into a token store: sentences, vocabulary, tokens.

The work is divided into parts of the input, and `bert_jax.store.stages` says what is done for each.
Between the stages, one process computes what concerns all parts: which documents are held out, the
sample of the vocabulary, the vocabulary, and what describes the store. See `bert_jax.store.plan`
for the files. The written bytes do not depend on the number of processes or on who runs them. A
store is complete once `metadata.json` exists.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.processes import num_cores
from bert_jax.base.progress import Progress, say
from bert_jax.store import preparation_report
from bert_jax.store.engines import Engine, LocalProcesses, run_stage
from bert_jax.store.heldout import choose
from bert_jax.store.manifest import given_tokenizer, say_skipped, tokenizer_options
from bert_jax.store.part import write_parts
from bert_jax.store.plan import (
    UNFINISHED,
    Directory,
    Plan,
    is_written,
    make_plan,
    read_file,
    result_name,
    start,
    write_file,
)
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.stages import append, heldout_text, part_name, tokenized
from bert_jax.store.texts import check_metadata, open_corpus
from bert_jax.store.token_store import (
    PARTS_VERSION,
    SPLITS,
    read_metadata,
    store_path,
    write_metadata,
)
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.bad_records import NUM_FIRST
from bert_jax.text.formats import FormatGuess
from bert_jax.text.named_sources import REPEAT_UNIT, language_of, repeats
from bert_jax.text.sentences import LANGUAGES
from bert_jax.text.sources import join_inputs, source_inputs, source_name, split_inputs
from bert_jax.tokenizers import training

# The most text that a vocabulary is made from. Frequencies hardly change with more text, but more
# memory is needed, most of all by SentencePiece's trainer.
_SAMPLE_BYTES, _SENTENCEPIECE_SAMPLE_BYTES = 2**26, 2**24


def prepare(
    data: ConfigDict, vocab_size: int, output: str | os.PathLike, engine: Engine | None = None
) -> dict[str, Any]:
    """Writes a token store, unless it is finished already.

    Args:
      vocab_size: The number of tokens; the vocabulary of `data.vocab` must have as many.
      engine: Runs the stages; by default `LocalProcesses`, which continues an unfinished store of
        the same texts and options, and replaces any other.
    """
    output = store_path(output)
    if (output / "metadata.json").exists():
        metadata = read_metadata(output)
        check_metadata(metadata, output, data, vocab_size)
        # A process may have been killed after it had finished the store.
        files.remove_directory(output / UNFINISHED)
        return metadata
    if data.add_tokens and not data.vocab:
        raise UserError(
            f"data.add_tokens is {data.add_tokens}, but there is no vocabulary to add tokens to: "
            "set config.init_from to a model, or data.vocab to a vocabulary"
        )
    languages = {data.language, *map(language_of, source_inputs(data.sources))}
    if unknown := sorted(filter(None, languages.difference(LANGUAGES))):
        key = "sources" if data.sources else "language"
        say(
            f"warning: there are no rules for splitting {', '.join(unknown)} into sentences "
            f"(data.{key}): those of a related language or of English are used (the languages with "
            f"rules: {', '.join(LANGUAGES)})"
        )
    if data.vocab:
        # A vocabulary that cannot be used is refused before the text is read.
        given_tokenizer(data, vocab_size)
    engine = engine or LocalProcesses(data.num_processes or num_cores())
    is_piped = not data.sources and split_inputs(data.input) == ["-"]
    with _standard_input(data) if is_piped else contextlib.nullcontext(data) as readable:
        corpus = open_corpus(readable)
        corpus.fetch()
        plan = make_plan(data, vocab_size, corpus)
        output.mkdir(parents=True, exist_ok=True)
        refusal = f"another process is writing a token store in {output}"
        with files.lock_directory(output, refusal):
            start(output, plan, may_replace=engine.may_replace)
            _run(engine, output, plan, data, vocab_size)
    return read_metadata(output)


def _run(engine: Engine, output: Directory, plan: Plan, data: ConfigDict, vocab_size: int) -> None:
    parts = range(len(plan.parts))
    run_stage(engine, output, plan, "count", parts)
    # What an earlier attempt has computed is kept.
    if not is_written(output, "heldout.json"):
        write_file(output, "heldout.json", choose_heldout(output, plan, data))
    if data.add_tokens or not data.vocab:
        if not is_written(output, "sample.json"):
            write_file(output, "sample.json", choose_sample(output, plan, data))
        run_stage(engine, output, plan, "sample", parts_with_sample(output))
    if not is_written(output, "vocabulary.json"):
        write_file(output, "vocabulary.json", make_tokenizer(output, plan, data, vocab_size))
    if data.duplicates == "exact":
        find_copies(output, plan)
    run_stage(engine, output, plan, "tokenize", parts)
    finish(output, plan, data)
    files.remove_directory(output / UNFINISHED)


@contextlib.contextmanager
def _standard_input(data: ConfigDict) -> Iterator[ConfigDict]:
    """Yields `data` with the text on standard input, copied to a temporary file, as its input.

    The stages read the text several times.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax_") as scratch:
        path = Path(scratch, "standard_input.txt")
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        data = data.copy_and_resolve_references()
        data.input = (join_inputs([str(path)]),)
        yield data


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
    names = [result_name("count", number) for number in parts_of(plan, name)]
    lengths, num_bytes = [], 0
    for result in (read_file(output, name) for name in names):
        lengths.append(len(result["bytes"]))
        num_bytes += sum(result["bytes"])
    _check_text(sum(lengths), name)
    by_id = data.heldout_by == "id" and data.heldout_fraction > 0
    sizes = chain.from_iterable(read_file(output, name)["characters"] for name in names)
    heldout = choose(sizes, 0 if by_id else data.heldout_fraction)
    if heldout.description:
        say(f"{name}: {heldout.description}" if name else heldout.description)
    documents = None if not heldout.description else list(heldout.documents)
    return lengths, {
        "bytes": num_bytes,
        "documents": documents,
        "end_fraction": heldout.end_fraction,
        "by_id": by_id,
    }


def choose_sample(output: Directory, plan: Plan, data: ConfigDict) -> dict[str, Any]:
    """Returns the content of sample.json.

    It has the documents that the vocabulary is made from, and the index of the first document of
    each part.
    """
    heldout = read_file(output, "heldout.json")
    weights = vocabulary_weights(heldout, data)
    trains_sentencepiece = data.tokenizer == "sentencepiece" and not data.vocab
    sample = DocumentSample(_SENTENCEPIECE_SAMPLE_BYTES if trains_sentencepiece else _SAMPLE_BYTES)
    index, lengths = 0, []
    for part, result in enumerate(_results(output, plan, "count")):
        name, first = plan.source_name(part), heldout["first_documents"][part]
        chosen = heldout_text(heldout["sources"][name], data.heldout_fraction)
        lengths.append(len(result["bytes"]))
        is_heldout = result["is_heldout"]
        for number, size in enumerate(result["bytes"]):
            if not (is_heldout[number] if is_heldout else first + number in chosen.documents):
                sample.offer(index, size, weights[name])
            index += 1
    return {"first_documents": _starts(lengths), "chosen": sample.chosen()}


def vocabulary_weights(heldout: dict[str, Any], data: ConfigDict) -> dict[str, int]:
    """Returns how often a trained vocabulary sees the text of each source, at least once.

    Returns:
      The weights by name, in units of 1 / REPEAT_UNIT. The least is 1.
    """
    sizes = {name: of_source["bytes"] for name, of_source in heldout["sources"].items()}
    found = repeats(sizes, data.sampling_exponent, data.source_weights)
    least = min(found.values())
    return {name: REPEAT_UNIT * number // least for name, number in found.items()}


def parts_with_sample(output: Directory) -> list[int]:
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
            of_texts = map(tokenizer.words, _sentences(output))
            counts = list(Counter(chain.from_iterable(of_texts)).items())
            words["tokens_per_word_before"] = training.tokens_per_word(tokenizer, counts)
            tokenizer = training.extend(tokenizer, data.add_tokens, counts)
            words["tokens_per_word"] = training.tokens_per_word(tokenizer, counts)
            before, after = words.values()
            say(f"a word of the text has {after:.3f} tokens; {before:.3f} without data.add_tokens")
    else:
        say(f"training a {data.tokenizer} vocabulary of {vocab_size} tokens")
        options = {"sentencepiece_type": data.sentencepiece_type, **tokenizer_options(data)}
        tokenizer = training.train(
            data.tokenizer, _sentences(output), vocab_size=vocab_size, **options
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


def _sentences(output: Directory) -> Iterator[str]:
    for number in parts_with_sample(output):
        path = output / UNFINISHED / f"{result_name('sample', number)}l"
        with files.open_input(path) as file:
            yield from map(json.loads, file)


def find_copies(output: Directory, plan: Plan) -> None:
    """Writes which documents of each part are copies of earlier ones.

    Copies have the same words; with `data.lowercase`, in any case.
    """
    known: set[int] = set()
    for number, result in enumerate(_results(output, plan, "count")):
        copies = []
        for document, text_hash in enumerate(result["hashes"]):
            if text_hash in known:
                copies.append(document)
            known.add(text_hash)
        write_file(output, result_name("copies", number), {"documents": copies})


def finish(output: Directory, plan: Plan, data: ConfigDict) -> None:
    """Completes the store: writes what describes all parts, and metadata.json last."""
    results = list(_results(output, plan, "tokenize"))
    vocabulary, heldout = read_file(output, "vocabulary.json"), read_file(output, "heldout.json")
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    first_dropped: dict[str, list[str]] = {}
    guesses: dict[str, FormatGuess] = {}
    for result in results:
        counts.update(result["counts"])
        dropped.update(result["dropped"])
        guesses |= {path: FormatGuess(*guess) for path, guess in result["guesses"].items()}
        for reason, found in result["first_dropped"].items():
            known = first_dropped.setdefault(reason, [])
            known += found[: NUM_FIRST - len(known)]
    parts = [result["splits"] for result in results]
    for name in plan.source_names:
        _check_source(name, [results[number] for number in parts_of(plan, name)], data)
    splits = {name: _sum(parts, name) for name in SPLITS}
    total = sum(split["documents"] for split in splits.values())
    if not splits["heldout"]["documents"]:
        del splits["heldout"]
    preparation_report.show(guesses, counts, data, vocabulary["unk"], total)
    formats = Counter((guess.format, guess.reason) for guess in guesses.values())
    report = {"formats": [[*guess, files] for guess, files in formats.items()], **counts}
    report |= vocabulary["words"]
    if any(of_source["end_fraction"] for of_source in heldout["sources"].values()):
        report["heldout"] = "ends"
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
            sizes = {part_name(number): parts[number][split] for number in numbers}
            names = [plan.source_name(number) for number in numbers]
            write_parts(output / split, sizes, names, has_words=has_words)
    write_metadata(output, metadata)


def _check_source(name: str, results: list[dict[str, Any]], data: ConfigDict) -> None:
    """Refuses a source without text to train on, given the results of its parts."""
    counts = [_sum([result["splits"] for result in results], split) for split in SPLITS]
    num_train, num_heldout = (split["documents"] for split in counts)
    of_source = f" of {name}" if name else ""
    if not num_train:
        dropped = sum((Counter(result["dropped"]) for result in results), Counter())
        skipped = "".join(f", {number:,} skipped ({why})" for why, number in dropped.items())
        raise UserError(
            f"no document{of_source} is left to train on: {num_heldout:,} held out{skipped}"
        )
    if data.heldout_fraction and not num_heldout:
        say(f"warning: the text{of_source} is too short to hold out enough of it for evaluation")


def parts_of(plan: Plan, name: str) -> list[int]:
    return [number for number in range(len(plan.parts)) if plan.source_name(number) == name]


def _sum(parts: list[dict[str, dict[str, int]]], split: str) -> dict[str, int]:
    keys = ("documents", "sentences", "tokens", "bytes_of_text")
    return {key: sum(part[split][key] for part in parts if split in part) for key in keys}


def _check_text(num_documents: int, name: str) -> None:
    """Refuses a source without documents; `name` is empty if the input has no named sources."""
    if not num_documents:
        subject = f"the source {name}" if name else "the input"
        raise UserError(f"{subject} has no document with text in it")


def tokenize_corpus(
    data: ConfigDict, tokenizer: tokenizers.Tokenizer, output_dir: str | os.PathLike
) -> dict[str, Any]:
    """Writes all of `data.input` as one split, with nothing held out.

    Args:
      data: As in `prepare`; the tokenizer's keys are ignored.
      output_dir: The directory of the split, for `TokenStore`; an old split is replaced.

    Returns:
      The split's counts, the number of `characters`, and under "dropped_documents" the bad
      documents by reason.
    """
    output_dir = store_path(output_dir)
    corpus = open_corpus(data)
    processes = data.num_processes or num_cores()
    counts: Counter[str] = Counter()
    files.remove_directory(output_dir)
    with (
        tempfile.TemporaryDirectory() as tokenizer_dir,
        files.local_output(output_dir) as local,
        SplitWriter(local, tokenizer.vocab_size) as split,
        Progress("tokenizing", corpus.fetch(), "MB") as bar,
    ):
        tokenizer.save(tokenizer_dir)
        corpus.advance = bar.advance
        for document in tokenized(
            corpus, corpus.documents(), Path(tokenizer_dir), processes, data, counts
        ):
            append(split, document)
        _check_text(split.counts["documents"], source_name(corpus.sources[0]))
    say_skipped(corpus.bad.dropped, corpus.bad.first_dropped)
    return {
        **split.counts,
        "characters": counts["characters"],
        "dropped_documents": dict(corpus.bad.dropped),
    }
