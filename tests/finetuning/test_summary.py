"""What a fine-tuning run prints about its data."""

from bert_jax.finetuning.summary import describe_classes, summarize


def test_classes_with_their_counts():
    (line,) = describe_classes({"bad": 900, "good": 1200})
    assert line == "training examples by class: 'good' 1,200, 'bad' 900"
    (line,) = describe_classes({f"class {i}": 30 - i for i in range(25)})
    assert line.endswith("'class 19' 11 and 5 more classes")


def test_splits_with_other_scores(tmp_path, capsys):
    """A test split may lack an entity type, or have one that the validation split lacks."""
    scores = {"validation": {"f1": 0.5, "f1_PER": 0.25}, "test": {"f1": 0.75, "f1_LOC": 1.0}}
    results = {"task": "ner", "metric": "f1", "best_step": 3, **scores}
    summarize(results, tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.replace("│", " ").splitlines()]
    for line in (["f1", "0.5000", "0.7500"], ["f1_PER", "0.2500"], ["f1_LOC", "1.0000"]):
        assert line in lines
