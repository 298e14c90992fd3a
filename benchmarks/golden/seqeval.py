"""Records the entities and scores of seqeval for random tags.

    pip install seqeval==1.2.2
    python -m benchmarks.golden.seqeval

tests/tasks/test_ner_tags.py compares ours with them. Half of the tags are consistent or nearly so.
"""

from benchmarks.golden.recipe import save_json
from tests.golden.inputs import read_json


def record() -> None:
    import warnings

    from seqeval.metrics import (
        accuracy_score,
        classification_report,
        f1_score,
        precision_score,
        recall_score,
    )
    from seqeval.metrics.sequence_labeling import get_entities

    warnings.simplefilter("ignore")
    golden = []
    for case in read_json("seqeval.json.gz"):
        right, predicted = case["right"], case["predicted"]
        report = {}
        if any(get_entities(tags) for tags in [*right, *predicted]):
            report = classification_report(right, predicted, output_dict=True)
        golden.append(
            {
                "right": right,
                "predicted": predicted,
                "entities": [get_entities(tags) for tags in right],
                "precision": precision_score(right, predicted),
                "recall": recall_score(right, predicted),
                "f1": f1_score(right, predicted),
                "accuracy": accuracy_score(right, predicted),
                "types": {
                    name: [scores["precision"], scores["recall"], scores["f1-score"]]
                    for name, scores in report.items()
                    if not name.endswith(" avg")
                },
            }
        )
    save_json("seqeval.json.gz", golden)


if __name__ == "__main__":
    record()
