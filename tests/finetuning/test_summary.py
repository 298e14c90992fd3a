"""What a fine-tuning run prints about its data."""

import pytest

from bert_jax.finetuning.summary import describe_classes, doubtful_classes


def test_classes_with_their_counts():
    assert (
        describe_classes({"bad": 2, "good": 1200})
        == "training examples by class: 'good' 1,200, 'bad' 2"
    )
    many = {f"class {i}": 30 - i for i in range(25)}
    assert describe_classes(many).endswith("'class 19' 11 and 5 more classes")


@pytest.mark.parametrize(
    "counts, warnings",
    [
        ({"good": 50, "bad": 40, "so-so": 5}, []),
        ({"entailment": 50, "not_entailment": 45}, []),
        ({"1": 50, "10": 2, "100": 40}, []),
        (
            {"good": 50, "Good": 1, "god": 2, "bad": 40},
            [
                "class 'Good' has few training examples (1); is it a misspelling of 'good' (50)?",
                "class 'god' has few training examples (2); is it a misspelling of 'good' (50)?",
            ],
        ),
        (
            {"good": 500, "bad": 400, "ugly": 3, "odd": 0},
            [
                "class 'ugly' has few training examples (3); the model can hardly learn it",
                "class 'odd' has few training examples (0); the model can hardly learn it",
            ],
        ),
    ],
)
def test_warnings_about_rare_classes(counts, warnings):
    assert doubtful_classes(counts) == warnings
    more = counts | {str(i): 0 for i in range(30)}
    assert len(doubtful_classes(more)) == 4
