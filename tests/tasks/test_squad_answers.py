"""SQuAD's metrics against the official scripts (benchmarks/golden/squad.py)."""

import itertools

import pytest

from benchmarks.golden.squad import CORNERS
from bert_jax.tasks import squad_answers
from tests.golden.inputs import read_json


@pytest.fixture(scope="module")
def golden():
    return read_json("squad_metrics.json.gz")


def test_normalization(golden):
    assert [squad_answers.normalize(text) for text in CORNERS] == golden["normalized"]


def test_every_pair_of_corner_cases(golden):
    pairs = list(itertools.product(CORNERS, CORNERS))
    assert len(pairs) == len(golden["pairs"]) > 1500
    differ = 0
    for (answer, prediction), expected in zip(pairs, golden["pairs"], strict=True):
        ours = [
            squad_answers.exact_match(prediction, answer),
            squad_answers.f1(prediction, answer),
            squad_answers.f1(prediction, answer, empty_agree=True),
        ]
        assert ours == pytest.approx(expected, abs=1e-12), (answer, prediction)
        differ += expected[1] != expected[2]
    assert differ > 10


def test_scores_match_the_official_script(golden):
    versions = {"1.1": 0, "2.0": 0}
    for case in golden["cases"]:
        if "1.1" in case:
            ours = squad_answers.score_1(case["answers"], case["predictions"])
            assert ours == pytest.approx(case["1.1"], abs=1e-9)
            versions["1.1"] += 1
        ours = squad_answers.score_2(
            case["answers"], case["predictions"], case["odds"], case["threshold"]
        )
        assert ours == pytest.approx(case["2.0"], abs=1e-9)
        versions["2.0"] += 1
    assert versions["1.1"] >= 10 and versions["2.0"] == 60
    # Files with both kinds of questions, and files with only one kind.
    keys = {tuple(case["2.0"]) for case in golden["cases"]}
    assert len(keys) == 3


def test_the_best_threshold_of_negative_odds_leaves_all_unanswered():
    answers = {"a": [], "b": ["cat"]}
    predictions, odds = {"a": "dog", "b": "dog"}, {"a": -3.0, "b": -2.0}
    scores = squad_answers.score_2(answers, predictions, odds, 0.0)
    assert scores["exact"] == 0 and scores["best_exact"] == 50
    again = squad_answers.score_2(answers, predictions, odds, scores["best_exact_thresh"])
    assert again["exact"] == again["best_exact"] == 50
