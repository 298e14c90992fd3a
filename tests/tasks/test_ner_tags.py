"""Entities and their scores against seqeval (benchmarks/golden/seqeval.py); the schemes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.tasks import ner_tags
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


@pytest.mark.parametrize(
    "tags",
    [
        "O I-A B-A I-A I-B O I-A",
        "O B-A B-A I-A B-B O B-A",
        "O S-A B-A E-A S-B O S-A",
    ],
)
def test_every_scheme_in_iob2(tags):
    assert ner_tags.in_iob2(tags.split()) == "O B-A B-A I-A B-B O B-A".split()


@given(st.lists(st.sampled_from(["O", *(f"{p}-{t}" for p in "BIES" for t in "AB")])))
def test_iob2_has_the_same_entities(tags):
    found = ner_tags.in_iob2(tags)
    assert ner_tags.entities(found) == ner_tags.entities(tags)
    assert ner_tags.in_iob2(found) == found


@pytest.mark.parametrize(
    "tag, expected",
    [
        ("O", "O"),
        ("B-PER", "B-PER"),
        ("L-PER", "E-PER"),
        ("U-a-b", "S-a-b"),
        ("X-PER", None),
        ("PER", None),
        ("B-", None),
        ("-PER", None),
        ("b-PER", None),
        ("BI-PER", None),
    ],
)
def test_tags_as_they_are_written(tag, expected):
    assert ner_tags.parse(tag) == expected
