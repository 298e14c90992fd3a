"""Finds the entities of tags in IOB1, IOB2 and IOBES, and scores entities.

Entities are defined as in conlleval, and in seqeval's default mode. An entity is a run of words
whose tags have the same type. It may begin with any tag except O. It ends with a tag E or S, or
before a tag that begins an entity (B, S), has another type, or is O.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
# BILOU prefixes and their equivalents in IOBES.
_BILOU = {"L": "E", "U": "S"}


class TaggedEntity(NamedTuple):
    """An entity of a sentence: the words from `first` to `last`."""

    type: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[TaggedEntity]:
    """Finds the entities of a sentence. A tag is O, or B, I, E or S with "-TYPE"."""
    found: list[TaggedEntity] = []
    previous, previous_type = OUTSIDE, ""
    for index, tag in enumerate(tags):
        prefix, _, type_ = tag.partition("-")
        if previous in "BI" and prefix in "IE" and type_ == previous_type:
            found[-1] = found[-1]._replace(last=index)
        elif prefix != OUTSIDE:
            found.append(TaggedEntity(type_, index, index))
        previous, previous_type = prefix, type_
    return found


def in_iob2(tags: Sequence[str]) -> list[str]:
    result = [OUTSIDE] * len(tags)
    for entity in entities(tags):
        result[entity.first] = f"B-{entity.type}"
        for word in range(entity.first + 1, entity.last + 1):
            result[word] = f"I-{entity.type}"
    return result


def parse(tag: str) -> str | None:
    """Replaces a BILOU prefix of a tag by its equivalent in IOBES; None if it is not a tag."""
    if tag == OUTSIDE:
        return tag
    prefix, _, type_ = tag.partition("-")
    prefix = _BILOU.get(prefix, prefix)
    return f"{prefix}-{type_}" if prefix in ("B", "I", "E", "S") and type_ else None


def score(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes the scores of seqeval over all sentences, from 0 to 1.

    Returns:
      "precision", "recall" and "f1" over all entities ("micro"); the same for each type
      ("TYPE_precision", ...); and the "accuracy" of the tags. Undefined scores are 0.
    """
    correct: Counter[str] = Counter()
    existing: Counter[str] = Counter()
    named: Counter[str] = Counter()
    same = total = 0
    for right_tags, predicted_tags in zip(right, predicted, strict=True):
        found, expected = entities(predicted_tags), entities(right_tags)
        named.update(entity.type for entity in found)
        existing.update(entity.type for entity in expected)
        correct.update(entity.type for entity in {*found} & {*expected})
        same += sum(a == b for a, b in zip(right_tags, predicted_tags, strict=True))
        total += len(right_tags)
    result = _ratios("", correct.total(), named.total(), existing.total())
    result["accuracy"] = same / total if total else 0.0
    for type_ in sorted({*existing, *named}):
        result |= _ratios(f"{type_}_", correct[type_], named[type_], existing[type_])
    return result


def _ratios(prefix: str, correct: int, named: int, existing: int) -> dict[str, float]:
    precision = correct / named if named else 0.0
    recall = correct / existing if existing else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {f"{prefix}precision": precision, f"{prefix}recall": recall, f"{prefix}f1": f1}
