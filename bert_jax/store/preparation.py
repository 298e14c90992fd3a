"""Turns text into a token store: sentences, vocabulary, tokens.

The work is divided into parts of the input, and `bert_jax.store.stages` says what is done for each.
The written bytes do not depend on the number of processes or on who runs them. A store is
complete once `metadata.json` exists.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.processes import num_cores
from bert_jax.base.progress import Progress, say
from bert_jax.store import duplicates, reductions
from bert_jax.store.engines import Engine, LocalProcesses
from bert_jax.store.manifest import (
    SPLIT_FILES,
    STORE_FILES,
    check_metadata,
    empty_directory,
    given_tokenizer,
    open_corpus,
)
from bert_jax.store.plan import UNFINISHED, Directory, Plan, computed_once, make_plan
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.stages import append, tokenized
from bert_jax.store.token_store import read_metadata, store_path
from bert_jax.text.bad_records import skipped_texts
from bert_jax.text.named_sources import check_sampling, language_of, named_inputs
from bert_jax.text.sentences import LANGUAGES
from bert_jax.text.sources import join_inputs, split_inputs


def is_standard_input(data: ConfigDict) -> bool:
    """Returns whether `data.input` is "-", the text on standard input."""
    return not data.sources and split_inputs(data.input) == ["-"]


def prepare(
    data: ConfigDict,
    vocab_size: int,
    output: str | os.PathLike,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Writes a token store, unless it is finished already.

    Args:
      data: The `data` section of a checked config.
      vocab_size: The number of tokens; the vocabulary of `data.vocab` must have as many.
      output: The directory of the store.
      engine: Runs the stages; by default `LocalProcesses`, which continues an unfinished store of
        the same texts and options, and replaces any other.

    Returns:
      The store's metadata.

    Raises:
      UserError: The corpus, the options or the directory cannot be used.
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
    languages = {data.language, *map(language_of, named_inputs(data.sources))}
    if unknown := sorted(filter(None, languages.difference(LANGUAGES))):
        key = "sources" if data.sources else "language"
        say(
            f"warning: there are no rules for splitting {', '.join(unknown)} into sentences "
            f"(data.{key}): those of a related language or of English are used (the languages with "
            f"rules: {', '.join(LANGUAGES)})"
        )
    check_sampling(named_inputs(data.sources), data.sampling_exponent, data.source_weights)
    # What the tokenizer lacks is said before the text is read.
    if data.vocab:
        given_tokenizer(data, vocab_size)
    else:
        tokenizers.check_installed(data.tokenizer)
    is_piped = is_standard_input(data)
    if is_piped and engine:
        raise UserError("data.input is '-', standard input, which only one process can read")
    engine = engine or LocalProcesses(data.num_processes or num_cores())
    with _standard_input(data, output) if is_piped else nullcontext(data) as readable:
        corpus = open_corpus(readable)
        corpus.fetch()
        plan = make_plan(data, vocab_size, corpus)
        with engine.opened(output, plan):
            _run(engine, output, plan, data, vocab_size)
    return read_metadata(output)


def _run(
    engine: Engine,
    output: Directory,
    plan: Plan,
    data: ConfigDict,
    vocab_size: int,
) -> None:
    """Runs the stages and what one process computes between them; see `bert_jax.store.plan`."""
    parts = range(len(plan.parts))
    engine.map(output, plan, "count", parts)
    heldout = computed_once(
        output, "heldout.json", lambda: reductions.choose_heldout(output, plan, data)
    )
    if data.add_tokens or not data.vocab:
        if reductions.holds_out_ends(heldout):
            engine.map(output, plan, "ends", parts)
        computed_once(output, "sample.json", lambda: reductions.choose_sample(output, plan, data))
        engine.map(output, plan, "sample", reductions.parts_with_sample(output, plan))
    computed_once(
        output,
        "vocabulary.json",
        lambda: reductions.make_tokenizer(output, plan, data, vocab_size),
    )
    engine.map(output, plan, "tokenize", parts)
    if data.duplicates != "keep":
        computed_once(output, "fates.json", lambda: duplicates.decide(output, len(parts)))
        engine.map(output, plan, "select", parts)
    reductions.finish(output, plan, data)
    files.remove_directory(output / UNFINISHED)


@contextmanager
def _standard_input(data: ConfigDict, output: Directory) -> Iterator[ConfigDict]:
    """Yields `data` with the text on standard input, copied to a temporary file, as its input.

    The stages read the text several times.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch if files.is_remote(output) else output) / "standard_input.txt"
        try:
            # An unfinished store may be of another text of this size, so it is not continued.
            with empty_directory(output, STORE_FILES), path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            data = data.copy_and_resolve_references()
            data.input = (join_inputs([str(path)]),)
            yield data
        finally:
            path.unlink(missing_ok=True)


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

    Raises:
      UserError: As for `prepare`.
    """
    output_dir = store_path(output_dir)
    corpus = open_corpus(data)
    processes = data.num_processes or num_cores()
    counts: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory() as tokenizer_dir,
        empty_directory(output_dir, SPLIT_FILES),
        files.local_output(output_dir) as local,
        SplitWriter(local, tokenizer.vocab_size) as split,
        Progress("tokenizing", corpus.fetch(), corpus.unit) as bar,
    ):
        tokenizer.save(tokenizer_dir)
        shown = 0.0
        for document in tokenized(
            *(corpus, corpus.documents(), Path(tokenizer_dir), processes, data, counts)
        ):
            append(split, document)
            bar.advance(corpus.done - shown)
            shown = corpus.done
        reductions.check_number(
            *(split.counts["documents"], counts["characters"]),
            *(data.rows, corpus.guesses, corpus.sources),
        )
    for text in skipped_texts(corpus.bad.dropped, corpus.bad.first_dropped):
        say(f"warning: {text}")
    return {
        **split.counts,
        "characters": counts["characters"],
        "dropped_documents": dict(corpus.bad.dropped),
    }
