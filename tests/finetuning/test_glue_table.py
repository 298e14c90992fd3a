"""configs/finetune/glue.py:all, on small data of every task in the layout of the download."""

import json
import random
import sys

import pytest

from tests import runs
from tests.finetuning import small

# The columns of train.tsv and dev.tsv; test.tsv has an index and no label.
COLUMNS = {
    "SST-2": "sentence label",
    "MRPC": "Quality #1_ID #2_ID #1_String #2_String",
    "STS-B": "index sentence1 sentence2 score",
    "QQP": "id question1 question2 is_duplicate",
    "MNLI": "index sentence1 sentence2 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
}
LABELS = ("Quality", "score", "is_duplicate", "gold_label", "label")
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

    def write(folder, name, columns, count):
        lines = ["\t".join(columns)]
        for number in range(count):
            known = dict.fromkeys(LABELS, choice.choice(VALUES.get(folder, "01")))
            known |= dict.fromkeys(("index", "id"), str(number)) | {"#1 ID": "1", "#2 ID": "2"}
            lines.append("\t".join(known.get(column) or sentence() for column in columns))
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")

    for folder, names in COLUMNS.items():
        columns = [name.replace("_", " ") if "#" in name else name for name in names.split()]
        texts = [name for name in columns if name not in (*LABELS, "index", "id")]
        for part in ("_matched", "_mismatched") if folder == "MNLI" else ("",):
            write(folder, f"dev{part}", columns, 8)
            write(folder, f"test{part}", ["index", *texts], 3)
        write(folder, "train", columns, 16)
    for name in ("train", "dev"):
        rows = [f"x\t{choice.randrange(2)}\t\t{sentence()}\n" for _ in range(16)]
        (root / "CoLA").mkdir(exist_ok=True)
        (root / "CoLA" / f"{name}.tsv").write_text("".join(rows))
    write("CoLA", "test", ["index", "sentence"], 3)
    write("AX", "AX", ["index", "sentence1", "sentence2"], 3)


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
