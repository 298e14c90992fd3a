"""Entities and their scores against seqeval (benchmarks/golden/seqeval.py); the schemes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.tasks import ner_tags
from bert_jax.tasks.ner_tags import Entity
from tests.golden.inputs import read_json


@pytest.fixture(scope="module")
def golden():
    return read_json("seqeval.json.gz")


def test_entities_match_seqeval(golden):
    assert len(golden) > 100
    for case in golden:
        for tags, expected in zip(case["right"], case["entities"], strict=True):
            assert [list(entity) for entity in ner_tags.entities(tags)] == expected


def test_scores_match_seqeval(golden):
    for case in golden:
        scores = ner_tags.score(case["right"], case["predicted"])
        for name in ("precision", "recall", "f1", "accuracy"):
            assert scores.pop(name) == pytest.approx(case[name], abs=1e-12)
        expected = {
            f"{type_}_{name}": value
            for type_, values in case["types"].items()
            for name, value in zip(("precision", "recall", "f1"), values, strict=True)
        }
        assert scores == pytest.approx(expected, abs=1e-12)
    assert {case["f1"] for case in golden} >= {0.0, 1.0}
    assert len({case["f1"] for case in golden}) > 50


@st.composite
def sentences(draw):
    """Draws entities, some of them adjacent, and the number of words."""
    found, at = [], 0
    for type_, length, gap in draw(
        st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 4), st.integers(0, 2)))
    ):
        found.append(Entity(type_, at + gap, at + gap + length - 1))
        at += gap + length
    return found, at + draw(st.integers(0, 2))


@given(sentences(), st.sampled_from(("iob1", "iob2", "iobes")))
def test_every_scheme_represents_the_same_entities(sentence, scheme):
    found, length = sentence
    tags = ner_tags.tags_of(found, length, scheme)
    assert len(tags) == length
    assert ner_tags.entities(tags) == found
    assert all(ner_tags.parse(tag) == tag for tag in tags)


@pytest.mark.parametrize(
    "scheme, expected",
    [
        ("iob1", "O I-A B-A I-A I-B O I-A"),
        ("iob2", "O B-A B-A I-A B-B O B-A"),
        ("iobes", "O S-A B-A E-A S-B O S-A"),
    ],
)
def test_schemes_by_hand(scheme, expected):
    found = [Entity("A", 1, 1), Entity("A", 2, 3), Entity("B", 4, 4), Entity("A", 6, 6)]
    assert ner_tags.tags_of(found, 7, scheme) == expected.split()
    assert ner_tags.scheme_of([["O"], expected.split()]) == scheme


@pytest.mark.parametrize(
    "tag, expected",
    [
        *[("O", "O"), ("B-PER", "B-PER"), ("L-PER", "E-PER"), ("U-a-b", "S-a-b")],
        *[("X-PER", None), ("PER", None), ("B-", None), ("B", None), ("-PER", None)],
        *[("o", None), ("b-PER", None), ("BI-PER", None), ("O-PER", None)],
    ],
)
def test_tags_as_they_are_written(tag, expected):
    assert ner_tags.parse(tag) == expected
