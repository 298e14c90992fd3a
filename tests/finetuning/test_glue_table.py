"""configs/finetune/glue.py:all, on small data of every task in the layout of the download."""

import json
import random
import sys

import pytest

from tests import runs
from tests.finetuning import small

HEADERS = {
    "SST-2": ("sentence\tlabel", "index\tsentence"),
    "MRPC": (
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String",
    ),
    "STS-B": ("index\tsentence1\tsentence2\tscore", "index\tsentence1\tsentence2"),
    "QQP": ("id\tquestion1\tquestion2\tis_duplicate", "id\tquestion1\tquestion2"),
    "MNLI": ("index\tsentence1\tsentence2\tgold_label", "index\tsentence1\tsentence2"),
    "QNLI": ("index\tquestion\tsentence\tlabel", "index\tquestion\tsentence"),
    "RTE": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "index\tsentence1\tsentence2"),
}
LABEL_COLUMNS = ("Quality", "score", "is_duplicate", "gold_label", "label")
VALUES = {
    "STS-B": ("0.5", "4.25"),
    "MNLI": ("entailment", "neutral", "contradiction"),
    "QNLI": ("entailment", "not_entailment"),
    "RTE": ("entailment", "not_entailment"),
}


def write_glue(root):
    choice = random.Random(0)

    def sentence():
        return " ".join(choice.choices(small.LETTERS, k=4))

    def table(columns, count, folder):
        known = {"#1 ID": "1", "#2 ID": "2"}
        lines = ["\t".join(columns)]
        for number in range(count):
            label = choice.choice(VALUES.get(folder, "01"))
            known |= dict.fromkeys(
                ("Quality", "score", "is_duplicate", "gold_label", "label"), label
            )
            known |= dict.fromkeys(("index", "id"), str(number))
            lines.append("\t".join(known.get(column) or sentence() for column in columns))
        return "\n".join(lines) + "\n"

    for folder, (columns, test) in HEADERS.items():
        names = {"train": 16, "dev": 8, "test": 3}
        if folder == "MNLI":
            sets = ("matched", "mismatched")
            names = {"train": 16} | {f"{n}_{s}": 8 for n in ("dev", "test") for s in sets}
        (root / folder).mkdir(parents=True)
        for name, count in names.items():
            header = test if name.startswith("test") else columns
            text = table(header.split("\t"), 3 if header == test else count, folder)
            (root / folder / f"{name}.tsv").write_text(text)
    (root / "CoLA").mkdir()
    for name in ("train", "dev"):
        rows = [f"x\t{choice.randrange(2)}\t\t{sentence()}\n" for _ in range(16)]
        (root / "CoLA" / f"{name}.tsv").write_text("".join(rows))
    (root / "CoLA" / "test.tsv").write_text(table(("index", "sentence"), 3, "CoLA"))
    (root / "AX").mkdir()
    (root / "AX" / "AX.tsv").write_text(table(("index", "sentence1", "sentence2"), 3, "AX"))


@pytest.mark.slow
def test_all_tasks_give_a_table_and_a_submission(tmp_path):
    small.write_bert(tmp_path / "hf")
    write_glue(tmp_path / "glue_data")
    values = small.OVERRIDES | {
        "init_from": tmp_path / "hf",
        "data.input": tmp_path / "glue_data",
        "train.num_epochs": 1.0,
        "eval.predict": "test",
    }
    directory = tmp_path / "out"
    command = [sys.executable, "-m", "bert_jax.finetune", f"--workdir={directory}"]
    command.append("--config=configs/finetune/glue.py:all")
    command += [f"--config.{key}={value}" for key, value in values.items()]
    finished = runs.run(command, timeout=1800)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads((directory / "glue.json").read_text())
    assert len(summary["scores"]) == 9 and len(summary["scores"]["mnli"]) == 2
    counted = [s for t, v in summary["scores"].items() if t != "wnli" for s in v.values()]
    assert summary["average"] == pytest.approx(sum(counted) / 9)
    assert "average" in finished.stdout
    # The names that gluebenchmark.com requires.
    assert {path.name for path in directory.glob("*/predictions/*")} == {
        f"{name}.tsv"
        for name in "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX".split()
    }
    for path in directory.glob("*/predictions/*"):
        lines = path.read_text().splitlines()
        assert lines[0] == "index\tprediction" and len(lines) == 4, path
