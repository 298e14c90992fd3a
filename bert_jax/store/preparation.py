"""Turns text into a token store: sentences, vocabulary, tokens.

The work is divided into parts of the input; `bert_jax.store.part_stages` says what is done for
each. Between the stages, one process does what concerns all parts: it chooses what is done with
each document (`bert_jax.store.choices`), makes the vocabulary, and describes the store. See
`bert_jax.store.plan` for the files. The written bytes do not depend on the number of processes or
on who runs them. A store is complete once `metadata.json` exists.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.processes import num_cores
from bert_jax.base.progress import Progress, say
from bert_jax.store import preparation_report
from bert_jax.store.choices import check_text, choice, choose_documents
from bert_jax.store.engines import Engine, LocalProcesses, run_stage
from bert_jax.store.manifest import given_tokenizer, say_skipped, tokenizer_options
from bert_jax.store.part import write_parts
from bert_jax.store.part_stages import (
    VOCABULARY,
    Sampled,
    Tokenized,
    Vocabulary,
    append,
    part_name,
    tokenized,
)
from bert_jax.store.plan import (
    UNFINISHED,
    Directory,
    Plan,
    is_written,
    make_plan,
    read_record,
    result_name,
    start,
    write_record,
)
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.texts import check_metadata, open_corpus
from bert_jax.store.token_store import (
    PARTS_VERSION,
    SPLITS,
    read_metadata,
    store_path,
    write_metadata,
)
from bert_jax.text.bad_records import NUM_FIRST
from bert_jax.text.guess_format import FormatGuess
from bert_jax.text.named_sources import language_of
from bert_jax.text.sentences import LANGUAGES
from bert_jax.text.sources import join_inputs, source_inputs, source_name, split_inputs
from bert_jax.tokenizers import training


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
    if not is_written(output, result_name("choice", parts[-1])):
        choose_documents(output, plan, data)
    sampled = [number for number in parts if choice(output, number).sample]
    run_stage(engine, output, plan, "sample", sampled)
    if not is_written(output, VOCABULARY):
        vocabulary = make_tokenizer(output, data, vocab_size, sampled)
        write_record(output, VOCABULARY, vocabulary)
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


def make_tokenizer(
    output: Directory, data: ConfigDict, vocab_size: int, sampled: Sequence[int]
) -> Vocabulary:
    """Writes tokenizer/, with the vocabulary of `data.vocab`, perhaps extended, or a new one.

    Args:
      sampled: The numbers of the parts with sentences to read.
    """
    words, sentences = {}, _sentences(output, sampled)
    if data.vocab:
        tokenizer = given_tokenizer(data, vocab_size)
        if data.add_tokens:
            of_texts = map(tokenizer.words, sentences)
            counts = list(Counter(chain.from_iterable(of_texts)).items())
            words["tokens_per_word_before"] = training.tokens_per_word(tokenizer, counts)
            tokenizer = training.extend(tokenizer, data.add_tokens, counts)
            words["tokens_per_word"] = training.tokens_per_word(tokenizer, counts)
            before, after = words.values()
            say(f"a word of the text has {after:.3f} tokens; {before:.3f} without data.add_tokens")
    else:
        say(f"training a {data.tokenizer} vocabulary of {vocab_size} tokens")
        options = {"sentencepiece_type": data.sentencepiece_type, **tokenizer_options(data)}
        tokenizer = training.train(data.tokenizer, sentences, vocab_size=vocab_size, **options)
        if tokenizer.num_unused:
            say(
                f"{tokenizer.num_unused:,} of the {vocab_size:,} tokens are [unusedN]: all "
                "characters of the text have tokens, and it has no more pieces that occur twice"
            )
    with files.local_output(output / "tokenizer") as local:
        tokenizer.save(local)
    unk = tokenizer.special_tokens.unk
    return Vocabulary(tokenizer.kind, tokenizer.fingerprint, tokenizer.vocab_size, unk, words)


def _sentences(output: Directory, sampled: Sequence[int]) -> Iterator[str]:
    for number in sampled:
        yield from read_record(output, result_name("sample", number), Sampled).sentences


def finish(output: Directory, plan: Plan, data: ConfigDict) -> None:
    """Completes the store: writes what describes all parts, and metadata.json last."""
    parts = [
        read_record(output, result_name("tokenize", number), Tokenized)
        for number in range(len(plan.parts))
    ]
    vocabulary = read_record(output, VOCABULARY, Vocabulary)
    for name in plan.source_names:
        _check_source(name, [parts[number] for number in plan.parts_of(name)], data)
    splits = {split: _size(parts, split) for split in SPLITS}
    total = sum(split["documents"] for split in splits.values())
    if not splits["heldout"]["documents"]:
        del splits["heldout"]
    counts = _sum(part.counts for part in parts)
    guesses: dict[str, FormatGuess] = {}
    first_dropped: dict[str, list[str]] = {}
    for part in parts:
        guesses |= {path: FormatGuess(*guess) for path, guess in part.guesses.items()}
        for reason, places in part.first_dropped.items():
            known = first_dropped.setdefault(reason, [])
            known += places[: NUM_FIRST - len(known)]
    preparation_report.show(guesses, counts, data, vocabulary.unk, total)
    formats = Counter((guess.format, guess.reason) for guess in guesses.values())
    report = {"formats": [[*guess, files] for guess, files in formats.items()], **counts}
    report |= vocabulary.words
    if any(choice(output, number).end_fraction for number in range(len(parts))):
        report["heldout"] = "ends"
    metadata = {
        "tokenizer": {"kind": vocabulary.kind, "fingerprint": vocabulary.fingerprint},
        "vocab_size": vocabulary.vocab_size,
        "splits": splits,
        "dropped_documents": dict(sorted(_sum(part.dropped for part in parts).items())),
        "first_dropped": first_dropped,
        "options": plan.options,
        "sources": plan.sources,
        "report": report,
    }
    if plan.has_parts:
        metadata = {"format_version": PARTS_VERSION, **metadata}
        has_words = data.word_boundaries == "spaces"
        for split in splits:
            numbers = [number for number, part in enumerate(parts) if split in part.splits]
            sizes = {part_name(number): parts[number].splits[split] for number in numbers}
            names = [plan.source_name(number) for number in numbers]
            write_parts(output / split, sizes, names, has_words=has_words)
    write_metadata(output, metadata)


def _check_source(name: str, parts: list[Tokenized], data: ConfigDict) -> None:
    """Refuses a source without text to train on, given its parts."""
    num_train, num_heldout = (_size(parts, split)["documents"] for split in SPLITS)
    of_source = f" of {name}" if name else ""
    if not num_train:
        dropped = _sum(part.dropped for part in parts)
        skipped = "".join(f", {number:,} skipped ({why})" for why, number in dropped.items())
        raise UserError(
            f"no document{of_source} is left to train on: {num_heldout:,} held out{skipped}"
        )
    if data.heldout_fraction and not num_heldout:
        say(f"warning: the text{of_source} is too short to hold out enough of it for evaluation")


def _size(parts: list[Tokenized], split: str) -> dict[str, int]:
    none = dict.fromkeys(("documents", "sentences", "tokens", "bytes_of_text"), 0)
    return dict(_sum(part.splits.get(split, none) for part in parts))


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for some in counts:
        total.update(some)
    return total


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
        check_text(split.counts["documents"], source_name(corpus.sources[0]))
    say_skipped(corpus.bad.dropped, corpus.bad.first_dropped)
    return {
        **split.counts,
        "characters": counts["characters"],
        "dropped_documents": dict(corpus.bad.dropped),
    }
