"""Learns the merges of BPE from the counts of words.

The `tokenizers` library trains only on text, and is slower in most languages. For the same words,
this gives the same merges in the same order, with ties broken in the same way;
tests/tokenizers/test_merges.py compares them.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence

# Pieces that occur once are noise.
MIN_FREQUENCY = 2
Pair = tuple[int, int]
Merges = Sequence[tuple[str, str]]


def learn_merges(
    words: Iterable[tuple[list[int], int]], tokens: list[str], num_tokens: int, prefix: str = ""
) -> Merges:
    """Joins the most frequent pair of neighbors again and again, and adds the joined tokens.

    Args:
      words: The ids of the parts of each word, which are changed, and the count of the word.
      tokens: The tokens by id. Those of the merges are appended, in order.
      num_tokens: The largest number of tokens.
      prefix: The prefix of tokens that continue a word.

    Returns:
      The merged pairs of tokens, in order.
    """
    words = list(words)
    ids = {token: i for i, token in enumerate(tokens)}
    pair_counts: dict[Pair, int] = defaultdict(int)
    words_of_pair: dict[Pair, list[int]] = defaultdict(list)
    for number, (parts, count) in enumerate(words):
        for pair in zip(parts, parts[1:], strict=False):
            pair_counts[pair] += count
            words_of_pair[pair].append(number)
    # The most frequent pair is first; of equally frequent ones, that with the lowest ids.
    queue = [(-pair_counts[pair], pair, found) for pair, found in words_of_pair.items()]
    heapq.heapify(queue)
    merges: list[tuple[str, str]] = []
    while queue and len(tokens) < num_tokens:
        negative_count, pair, found = heapq.heappop(queue)
        if -negative_count != pair_counts[pair]:
            # Other merges have changed the count since.
            heapq.heappush(queue, (-pair_counts[pair], pair, found))
            continue
        if -negative_count < MIN_FREQUENCY:
            break
        first, second = pair
        joined = tokens[first] + tokens[second].removeprefix(prefix)
        new = ids.setdefault(joined, len(tokens))
        if new == len(tokens):
            tokens.append(joined)
        merges.append((tokens[first], tokens[second]))
        words_of_pair = defaultdict(list)
        for number in found:
            parts, count = words[number]
            _merge(parts, pair, new, count, number, pair_counts, words_of_pair)
        for changed, new_words in words_of_pair.items():
            heapq.heappush(queue, (-pair_counts[changed], changed, new_words))
    return merges


def _merge(
    parts: list[int],
    pair: Pair,
    new: int,
    count: int,
    number: int,
    pair_counts: dict[Pair, int],
    words_of_pair: dict[Pair, list[int]],
) -> None:
    """Replaces a pair in a word by a new part; updates the pairs of its neighbors."""
    first, second = pair
    index = 0
    while index < len(parts) - 1:
        if parts[index] == first and parts[index + 1] == second:
            parts[index : index + 2] = [new]
            if index:
                before = parts[index - 1]
                pair_counts[before, first] -= count
                pair_counts[before, new] += count
                words_of_pair[before, new].append(number)
            if index + 1 < len(parts):
                after = parts[index + 1]
                pair_counts[second, after] -= count
                pair_counts[new, after] += count
                words_of_pair[new, after].append(number)
        index += 1
