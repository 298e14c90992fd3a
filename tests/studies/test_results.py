"""The table, the figures and the sentences of a study, from recorded results."""

import math
import re

import pytest

from bert_jax.studies import results
from bert_jax.studies.page import _figure
from bert_jax.studies.results import Values

MODELS = {
    # name: FLOPs, losses, scores
    "small": (1e12, [5.0, 5.1], [70.0, 72.0]),
    "middle": (2e12, [4.6, 4.65], [71.0, 72.5]),
    "large": (4e12, [4.55, 4.62], [80.0, 80.5]),
}


def recorded(baselines=(6.5, 6.5, 6.5), seeds=2):
    rows = [
        {
            "name": name,
            "parameters": 1_500_000,
            "steps": 600,
            "tokens": 614_400,
            "flops": flops,
            "seconds": 90.0,
            "loss": {
                "label": "masked-LM loss (nats)",
                "is_greater_better": False,
                "values": losses[:seeds],
                "baselines": [baseline] * seeds,
                "perplexities": [math.exp(loss) for loss in losses[:seeds]],
            },
            "scores": {"sst2": {"values": scores[:seeds]}},
        }
        for (name, (flops, losses, scores)), baseline in zip(MODELS.items(), baselines, strict=True)
    ]
    tasks = {"sst2": {"metric": "accuracy", "random": {"values": [71.0, 71.4]}}}
    return {"models": rows, "tasks": tasks, "reference": 2e19}


def test_the_table_has_medians_and_ranges():
    headers, rows = results.table_rows(recorded())
    assert dict(zip(headers, rows[0], strict=True)) == {
        "model": "small",
        "parameters": "1.5 M",
        "steps": "600",
        "tokens": "614 k",
        "FLOPs": "1 T",
        "time": "90 s",
        "loss": "5.050 (5.000 to 5.100)",
        "perplexity": "156.2",
        "baseline": "6.500",
        "sst2 accuracy": "71.0 (70.0 to 72.0)",
    }
    assert rows[-1][0] == "random weights as in small"
    assert rows[-1][-1] == "71.2 (71.0 to 71.4)"


def test_a_difference_below_the_spread_is_called_that():
    loss_order, loss_pairs, order, pairs, random, scale = results.conclusions(recorded())
    assert re.findall(r"(small|middle|large) \d", loss_order) == ["large", "middle", "small"]
    # The medians 4.585 and 4.625 differ by 0.04; the range of `large` is 0.07.
    assert "1 of 3 differences are below the spread" in loss_pairs
    assert loss_pairs.endswith("nothing: large and middle.")
    assert re.findall(r"(small|middle|large) \d", order) == ["large", "middle", "small"]
    assert pairs.endswith("nothing: middle and small.")
    assert "middle, small are not above them" in random
    assert "4 TFLOPs" in scale and "5,000,000 times" in scale


def test_one_seed_has_no_spread():
    sentences = results.conclusions(recorded(seeds=1))
    assert "--pretraining_seeds=2" in sentences[1] and "--seeds=2" in sentences[3]
    assert not [text for text in sentences if "below the spread" in text]


def test_losses_on_other_text_are_not_compared():
    quantities = results.quantities(recorded(baselines=(6.5, 6.5, 6.7)))
    names = [[values.name for values in quantity.models] for quantity in quantities]
    assert names == [["small", "middle"], ["large"], ["small", "middle", "large"]]
    assert [q.title for q in quantities[:2]] == [
        f"held-out masked-LM loss (nats), baseline {baseline}" for baseline in ("6.500", "6.700")
    ]
    found = results.conclusions(recorded(baselines=(6.5, 6.5, 6.7)))
    (alone,) = [sentence for sentence in found if "nothing to compare" in sentence]
    assert "compare: large (held-out masked-LM loss (nats), baseline 6.700). Scores" in alone


def test_a_loss_that_is_not_of_tokens_has_no_perplexity():
    found = recorded()
    found["models"][0]["loss"]["perplexities"] = [None, None]
    headers, rows = results.table_rows(found)
    assert dict(zip(headers, rows[0], strict=True))["perplexity"] == ""


@pytest.mark.parametrize("scores, text", [([1.0], "1.0"), ([3.0, 1.0, 1.5], "1.5 (1.0 to 3.0)")])
def test_values_over_seeds(scores, text):
    assert Values.of("a", scores).text(".1f") == text


def test_a_figure_has_a_symbol_for_each_model():
    found = recorded()
    figure = _figure(results.quantities(found)[0], "flops", "FLOPs", found)
    assert {int(n) for n in re.findall(r"var\(--run(\d+)\)", figure)} == {0, 1, 2}
    assert figure.startswith("<figure><figcaption>held-out masked-LM loss (nats)</figcaption><svg")
    assert "data-frame" in figure and "data-limits" in figure and "1T" in figure
