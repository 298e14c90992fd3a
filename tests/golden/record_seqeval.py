"""Records the entities and scores of seqeval for random tags.

tests/tasks/test_ner_tags.py compares ours with them. To record again, in an environment of its
own (recorded with seqeval 1.2.2):

    pip install seqeval
    python tests/golden/record_seqeval.py tests/golden/seqeval.json.gz
"""

import gzip
import json
import random
import sys
from pathlib import Path

SEED = 20262
NUM_CASES = 150


def cases() -> list[tuple[list[list[str]], list[list[str]]]]:
    """Returns right and predicted tags: consistent, almost consistent, and random."""
    rng = random.Random(SEED)
    types = ["PER", "LOC", "a-b", "B"]
    result = []
    for _ in range(NUM_CASES):
        prefixes = rng.choice(["BI", "BIES", "I", "IE", "BS"])
        tags = ["O"] * rng.randint(1, 4)
        tags += [f"{p}-{t}" for p in prefixes for t in rng.sample(types, rng.randint(1, 3))]
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 6))]
        right = [[rng.choice(tags) for _ in range(length)] for length in lengths]
        error = rng.choice([0.0, 0.1, 0.5, 1.0])
        predicted = [
            [rng.choice(tags) if rng.random() < error else tag for tag in sentence]
            for sentence in right
        ]
        result.append((right, predicted))
    # No right entity, no predicted entity, and neither.
    result += [([["B-PER"]], [["O"]]), ([["O"]], [["B-PER"]]), ([["O", "O"]], [["O", "O"]])]
    return result


def record(output: Path) -> None:
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
    for right, predicted in cases():
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
    content = json.dumps(golden, separators=(",", ":"), default=float).encode()
    output.write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
