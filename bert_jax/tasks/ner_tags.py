"""Tags of words: entities in IOB1, IOB2 and IOBES, and scores over entities.

An entity is what conlleval, and seqeval in its default mode, take for one: words whose tags
have one type, up to a tag that ends it (E, S) or the next that begins one (B, S) or is of
another type or O; whichever tag it begins with.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
SCHEMES = ("iob1", "iob2", "iobes")
# BILOU's names of IOBES' tags.
_BILOU = {"L": "E", "U": "S"}


class Entity(NamedTuple):
    """Words `first` to `last` of a sentence."""

    type: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """Those of one sentence, in their order; each tag is O or one of B, I, E, S with "-TYPE"."""
    found: list[Entity] = []
    previous, previous_type = OUTSIDE, ""
    for index, tag in enumerate(tags):
        prefix, _, type_ = tag.partition("-")
        if previous in "BI" and prefix in "IE" and type_ == previous_type:
            found[-1] = found[-1]._replace(last=index)
        elif prefix != OUTSIDE:
            found.append(Entity(type_, index, index))
        previous, previous_type = prefix, type_
    return found


def tags_of(found: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """The tags of a sentence of that many words with these entities."""
    tags = [OUTSIDE] * length
    previous = Entity("", -1, -1)
    for entity in found:
        tags[entity.first : entity.last + 1] = [f"I-{entity.type}"] * (
            entity.last + 1 - entity.first
        )
        follows = previous.type == entity.type and previous.last + 1 == entity.first
        if scheme == "iobes":
            tags[entity.last] = f"E-{entity.type}"
        if scheme != "iob1" or follows:
            tags[entity.first] = f"B-{entity.type}"
        if scheme == "iobes" and entity.first == entity.last:
            tags[entity.first] = f"S-{entity.type}"
        previous = entity
    return tags


def parse(tag: str) -> str | None:
    """The tag with BILOU's prefixes as IOBES'; None if it is none."""
    if tag == OUTSIDE:
        return tag
    prefix, _, type_ = tag.partition("-")
    prefix = _BILOU.get(prefix, prefix)
    return f"{prefix}-{type_}" if prefix in ("B", "I", "E", "S") and type_ else None


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme that these tags, `parse`d, are in.

    IOBES if any prefix is E or S; IOB1 if no entity that stands by itself begins with B, and
    some begin with I; else IOB2.
    """
    begins: Counter[str] = Counter()
    for tags in sentences:
        if any(tag[0] in "ES" for tag in tags):
            return "iobes"
        previous_type = ""
        for tag in tags:
            prefix, _, type_ = tag.partition("-")
            begins[prefix] += type_ != previous_type
            previous_type = type_
    return "iob1" if begins["I"] and not begins["B"] else "iob2"


def score(right: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """What seqeval computes of the tags of all sentences, from 0 to 1.

    Returns:
      "precision", "recall" and "f1" of all entities ("micro"); the same of each type
      ("TYPE_precision", ...); and "accuracy", of the tags. What is not defined is 0.
    """
    correct: Counter[str] = Counter()
    there: Counter[str] = Counter()
    named: Counter[str] = Counter()
    same = total = 0
    for right_tags, predicted_tags in zip(right, predicted, strict=True):
        ours, theirs = entities(predicted_tags), entities(right_tags)
        named.update(entity.type for entity in ours)
        there.update(entity.type for entity in theirs)
        correct.update(entity.type for entity in {*ours} & {*theirs})
        same += sum(a == b for a, b in zip(right_tags, predicted_tags, strict=True))
        total += len(right_tags)
    result = _ratios("", correct.total(), named.total(), there.total())
    result["accuracy"] = same / total if total else 0.0
    for type_ in sorted({*there, *named}):
        result |= _ratios(f"{type_}_", correct[type_], named[type_], there[type_])
    return result


def _ratios(prefix: str, correct: int, named: int, there: int) -> dict[str, float]:
    precision = correct / named if named else 0.0
    recall = correct / there if there else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {f"{prefix}precision": precision, f"{prefix}recall": recall, f"{prefix}f1": f1}
