"""Counts the words of the parts of a corpus, in files of sorted lines "WORD<tab>COUNT".

Memory is bounded: sorted files are merged as streams.
"""

import heapq
import itertools
import operator
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bert_jax.base import files
from bert_jax.store.plan import Directory
from bert_jax.tokenizers.training_words import WordsOfText

# The number of parts whose counts are merged by one worker.
GROUP_PARTS = 128
# The most characters of distinct words that a worker holds.
_COUNTED_CHARACTERS = 2**22
# The most bytes of distinct words that a vocabulary is trained on: about a million words, which
# need less than 1 GB of memory.
_TRAINED_BYTES = 2**23


def write_counts(texts: Iterable[str], words_of: WordsOfText, path: Directory) -> None:
    """Writes the counts of the words of some texts."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="bert_jax_") as scratch:
        sorted_files: list[Path] = []

        def write_sorted() -> None:
            sorted_files.append(Path(scratch, str(len(sorted_files))))
            with sorted_files[-1].open("wb") as file:
                file.writelines(_lines((w.encode(), n) for w, n in sorted(counts.items())))
            counts.clear()

        unchecked = 0
        for text in texts:
            counts.update(words_of(text))
            unchecked += len(text)
            # The sum takes time, so it is not made for each text.
            if unchecked > _COUNTED_CHARACTERS // 4:
                unchecked = 0
                if sum(map(len, counts)) > _COUNTED_CHARACTERS:
                    write_sorted()
        write_sorted()
        merge_counts(sorted_files, path)


def merge_counts(
    paths: Sequence[Directory], path: Directory, weights: Sequence[float] = ()
) -> None:
    """Writes the sums of the counts of several files, each multiplied by its weight."""
    with files.new_file(path) as file:
        file.writelines(_lines(_merged(paths, weights)))


def most_frequent(paths: Sequence[Directory]) -> list[tuple[str, int]]:
    """Returns the most frequent words of several files, and their counts.

    They have at most _TRAINED_BYTES bytes in all.
    """
    kept: list[tuple[int, bytes]] = []
    size = 0
    for word, count in _merged(paths):
        heapq.heappush(kept, (count, word))
        size += len(word)
        while size > _TRAINED_BYTES:
            size -= len(heapq.heappop(kept)[1])
    return [(word.decode(), count) for count, word in kept]


def _merged(
    paths: Sequence[Directory], weights: Sequence[float] = ()
) -> Iterator[tuple[bytes, int]]:
    with ExitStack() as stack:
        streams = [
            map(_parse, stack.enter_context(files.open_input(path)), itertools.repeat(weight))
            for path, weight in zip(paths, weights or [1.0] * len(paths), strict=True)
        ]
        for word, group in itertools.groupby(heapq.merge(*streams), operator.itemgetter(0)):
            yield word, sum(count for _, count in group)


def _parse(line: bytes, weight: float) -> tuple[bytes, int]:
    word, count = line.split(b"\t")
    return word, round(int(count) * weight)


def _lines(counts: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
    return (b"%b\t%d\n" % entry for entry in counts)
