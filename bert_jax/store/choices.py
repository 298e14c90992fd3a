"""What is done with each document: held out, dropped as a copy, read for the vocabulary.

One process decides it for all parts, from the sizes and hashes of their documents.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.store.heldout import HeldOutText, choose
from bert_jax.store.plan import Directory, Plan, read_record, result_name, write_record
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.named_sources import REPEAT_UNIT, repeats

# The most text that a vocabulary is made from. Frequencies hardly change with more text, but more
# memory is needed, most of all by SentencePiece's trainer.
_SAMPLE_BYTES, _SENTENCEPIECE_SAMPLE_BYTES = 2**26, 2**24


class Counted(NamedTuple):
    """What is known of the documents of a part, in their order."""

    characters: list[int]
    num_bytes: list[int]
    heldout: list[int]  # The numbers of those held out by their ids, if data.heldout_by=id.
    hashes: list[int]  # The hash of each document's words, if data.duplicates=exact.


class ChosenDocuments(NamedTuple):
    """What is done with the documents of a part, by their numbers in the part."""

    heldout: list[int]
    end_fraction: float  # See `HeldOutText`.
    sample: list[int]  # The vocabulary is made from these, some of them more than once.
    copies: list[int]  # These repeat earlier documents and are dropped.


def choose_documents(output: Directory, plan: Plan, data: ConfigDict) -> None:
    """Writes the `ChosenDocuments` of each part, in order, after the stage `count`."""
    heldout, num_bytes = {}, {}
    for name in plan.source_names:
        heldout[name], num_bytes[name] = _choose_in_source(output, plan, data, name)
    sample_N = np.zeros(0, np.int64)
    if data.add_tokens or not data.vocab:
        sample_N = _sample(_documents(output, plan, heldout), data, num_bytes)
    known: set[int] = set()
    index = 0
    for number, name, counted, heldout_numbers in _documents(output, plan, heldout):
        copies = []
        for document, text_hash in enumerate(counted.hashes):
            if text_hash in known:
                copies.append(document)
            known.add(text_hash)
        stop = index + len(counted.num_bytes)
        first, end = np.searchsorted(sample_N, (index, stop))
        sample = (sample_N[first:end] - index).tolist()
        chosen = ChosenDocuments(heldout_numbers, heldout[name].end_fraction, sample, copies)
        write_record(output, result_name("choice", number), chosen)
        index = stop


def choice(output: Directory, number: int) -> ChosenDocuments:
    return read_record(output, result_name("choice", number), ChosenDocuments)


def _counted(output: Directory, number: int) -> Counted:
    return read_record(output, result_name("count", number), Counted)


def _choose_in_source(
    output: Directory, plan: Plan, data: ConfigDict, name: str
) -> tuple[HeldOutText, int]:
    """Returns what is held out of a source, and the bytes of its text."""
    numbers, num_documents, num_bytes = plan.parts_of(name), 0, 0
    for number in numbers:
        sizes = _counted(output, number).num_bytes
        num_documents += len(sizes)
        num_bytes += sum(sizes)
    check_text(num_documents, name)
    characters = chain.from_iterable(_counted(output, n).characters for n in numbers)
    heldout = choose(characters, 0 if data.heldout_by == "id" else data.heldout_fraction)
    if heldout.description:
        say(f"{name}: {heldout.description}" if name else heldout.description)
    return heldout, num_bytes


def check_text(num_documents: int, name: str) -> None:
    """Refuses a source without documents; `name` is empty if the input has no named sources."""
    if not num_documents:
        subject = f"the source {name}" if name else "the input"
        raise UserError(f"{subject} has no document with text in it")


def _documents(
    output: Directory, plan: Plan, heldout: Mapping[str, HeldOutText]
) -> Iterator[tuple[int, str, Counted, list[int]]]:
    """Yields each part: its number, source and documents, and the numbers of the held-out ones."""
    # The number of documents of each source in earlier parts.
    before: Counter[str] = Counter()
    for number in range(len(plan.parts)):
        name, counted = plan.source_name(number), _counted(output, number)
        documents, first = heldout[name].documents, before[name]
        before[name] += len(counted.num_bytes)
        by_place = [n - first for n in range(first, before[name]) if n in documents]
        yield number, name, counted, by_place or counted.heldout


def _sample(
    documents: Iterable[tuple[int, str, Counted, list[int]]],
    data: ConfigDict,
    num_bytes: Mapping[str, int],
) -> np.ndarray:
    """Returns the documents that the vocabulary is made from, int64, counted over all parts."""
    weights = vocabulary_weights(num_bytes, data)
    trains_sentencepiece = data.tokenizer == "sentencepiece" and not data.vocab
    sample = DocumentSample(_SENTENCEPIECE_SAMPLE_BYTES if trains_sentencepiece else _SAMPLE_BYTES)
    index = 0
    for _, name, counted, heldout in documents:
        skipped = set(heldout)
        for number, size in enumerate(counted.num_bytes):
            if number not in skipped:
                sample.offer(index + number, size, weights[name])
        index += len(counted.num_bytes)
    return np.array(sample.chosen(), np.int64)


def vocabulary_weights(num_bytes: Mapping[str, int], data: ConfigDict) -> dict[str, int]:
    """Returns how often a trained vocabulary sees the text of each source, at least once.

    Args:
      num_bytes: The size of the text of each source.

    Returns:
      The weights by name, in units of 1 / REPEAT_UNIT. The least is 1.
    """
    found = repeats(num_bytes, data.sampling_exponent, data.source_weights)
    least = min(found.values())
    return {name: REPEAT_UNIT * number // least for name, number in found.items()}
