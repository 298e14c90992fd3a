"""What all tasks share: names, the validation part of the training file, and truncated rows."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from bert_jax.base.errors import UserError
from bert_jax.base.parts import load_part
from bert_jax.config.task_sections import TASKS
from bert_jax.heads import load_head
from tests.tasks.conftest import both, open_task

NUMBER = 25
TEXTS = [f"the man came {'so ' * i}here" for i in range(NUMBER)]


def lines(header, line):
    """Returns a table with a line for each text and its label, 0 or 1."""
    return "".join([header, *(f"{line(text, i % 2)}\n" for i, text in enumerate(TEXTS))])


def tagged(text, label):
    # The type of the second sentence, which is held out, is in no other sentence.
    words = [
        *(f"{word} O" for word in text.split()),
        "Ann B-" + ("X" if text == TEXTS[1] else "PER"),
    ]
    return "\n".join([*words, ""])


def choice(text, label):
    choices = {"label": ["A", "B"], "text": ["yes", "no"]}
    values = {"id": text, "question": text, "choices": choices, "answerKey": "AB"[label]}
    return json.dumps(values)


def questions(text):
    answers = [{"text": "man", "answer_start": 4}]
    qas = [{"id": text + k, "question": f"{k}?", "answers": answers} for k in "ab"]
    return {"context": text, "qas": qas}


SQUAD = {"version": "1.1", "data": [{"title": "", "paragraphs": list(map(questions, TEXTS))}]}
FILES = {
    "table": ("x.csv", lines("text,label\n", lambda text, label: f"{text},{label}")),
    "sst2": ("x.tsv", lines("sentence\tlabel\n", lambda text, label: f"{text}\t{label}")),
    "ner": ("x.conll", lines("", tagged)),
    "multiple_choice": ("x.jsonl", lines("", choice)),
    "squad": ("x.json", SQUAD),
}


@pytest.mark.parametrize("name", FILES)
def test_one_file_is_divided_into_training_and_validation(write, tmp_path, tokenizer, name):
    file, content = FILES[name]
    write({file: content})
    options = {"max_seq_length": 96}
    one = open_task(name, tmp_path / file, tokenizer, **options)
    whole = open_task(name, both(tmp_path / file), tokenizer, **options).rows("train")
    assert one.parts == ("train", "validation") == one.splits
    ids = [[tuple(row.input_ids_L) for row in rows] for rows in (one.rows("train"), whole)]
    heldout = [tuple(row.input_ids_L) for row in one.rows("validation")]
    assert sorted(ids[0] + heldout) == sorted(ids[1])
    assert not set(ids[0]) & set(heldout), "for example, questions on one paragraph"
    # The second of the first ten examples, the fifth of the next ten and the second of the rest.
    assert len(heldout) == 3 * len(ids[1]) // NUMBER


def test_two_examples_suffice(write, tmp_path, tokenizer):
    write({"x.csv": "text,label\na,0\nb,1\n"})
    task = open_task("table", tmp_path / "x.csv", tokenizer)
    assert [len(task.rows(split)) for split in task.splits] == [1, 1]
    write({"x.csv": "text,label\na,0\n"})
    with pytest.raises(UserError, match="the validation split .*x.csv. has no rows"):
        open_task("table", tmp_path / "x.csv", tokenizer, regression=True).rows("validation")


@pytest.mark.parametrize(
    "name, options, sentence",
    [
        ("table", {}, "15 of 25 sequences are truncated to 16 tokens (config.data.max_seq_length)"),
        ("multiple_choice", {}, "35 of 50 sequences are truncated to 16 tokens (config.data."),
        # Long sentences and contexts are divided into several rows.
        ("ner", {}, ""),
        ("squad", {"max_query_length": 10}, ""),
        (
            "squad",
            {"max_query_length": 1},
            "50 of 50 questions are truncated to 1 tokens (config.squad.max_query_length)",
        ),
    ],
)
def test_truncated_rows_are_counted(write, tmp_path, tokenizer, name, options, sentence):
    file, content = FILES[name]
    write({file: content})
    task = open_task(name, both(tmp_path / file), tokenizer, **options)
    found = task.rows("train").truncated()
    assert found.startswith(sentence) and bool(found) == bool(sentence)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_names_a_head(name):
    assert load_head(load_part(name, TASKS, "config.task").head).model_class


CLASSES = ["O", "B-PER", "I-PER"]
# Rows as `datasets` has them, with the tags of words as numbers of classes.
ROWS = {
    "ner": [{"tokens": ["Ann", "Lee", "came"], "ner_tags": [1, 2, 0]}] * 3,
    "squad": [
        {
            "id": f"{i}",
            "context": "the man came",
            "question": "who?",
            "answers": {"text": ["man"], "answer_start": [4]},
        }
        for i in range(3)
    ],
    "multiple_choice": [json.loads(choice(text, i % 2)) for i, text in enumerate(TEXTS[:3])],
}


@pytest.mark.parametrize(
    "places",
    [
        ("train-00000-of-00001.parquet", "validation-00000-of-00001.parquet"),
        ("data/train-00000-of-00001.parquet", "data/validation-00000-of-00001.parquet"),
        ("train/data-00000-of-00001.arrow", "validation/data-00000-of-00001.arrow"),
    ],
)
@pytest.mark.parametrize("name", ROWS)
def test_files_of_datasets(name, places, tmp_path, write, tokenizer):
    rows = ROWS[name]
    features = {"ner_tags": {"feature": {"names": CLASSES, "_type": "ClassLabel"}}}
    table = pa.Table.from_pylist(rows).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features if name == "ner" else {}}})}
    )
    for place in places:
        path = tmp_path / "datasets" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if place.endswith("parquet"):
            parquet.write_table(table, path)
        else:
            with ipc.new_stream(path, table.schema) as stream:
                stream.write_table(table)
    if name == "ner":
        rows = [row | {"ner_tags": [CLASSES[tag] for tag in row["ner_tags"]]} for row in rows]
    lines = write({"train.jsonl": rows, "validation.jsonl": rows}, "lines")
    stored, expected = (open_task(name, x, tokenizer) for x in (tmp_path / "datasets", lines))
    assert stored.labels == expected.labels
    for split in ("train", "validation"):
        batch, same = (task.rows(split).take(np.arange(3)) for task in (stored, expected))
        assert batch.keys() == same.keys()
        for field in same:
            np.testing.assert_array_equal(batch[field], same[field])


def write_shards(folder, total, numbers, start="train-", end=""):
    for number in numbers:
        path = folder / f"{start}{number:05}-of-{total:05}{end}.parquet"
        path.parent.mkdir(exist_ok=True, parents=True)
        table = pa.table({"text": ["a", "b"], "label": [f"x{number}", f"x{number}"]})
        parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("end", ["", "-{:x}"])
@pytest.mark.parametrize("start", ["train-", "data/train-"])
def test_the_files_of_a_split_are_read_in_order(tmp_path, tokenizer, capsys, start, end):
    for number in (1, 0, 2):
        path = write_shards(tmp_path, 3, [number], start, end.format(number + 700))
    task = open_task("table", tmp_path, tokenizer)
    task.parts = ()
    assert task.labels == ("x0", "x1", "x2")
    assert task.rows("train").labels_N.tolist() == [0, 0, 1, 1, 2, 2]
    assert task.rows("train").ids == list("012345")
    # A pattern may be named; of one file that is named, the others are not read, which is said.
    named = open_task("table", both(path.parent / "train-*.parquet"), tokenizer)
    assert len(named.rows("train")) == 6
    assert "warning" not in capsys.readouterr().out
    one = open_task("table", both(path), tokenizer, labels=("x2", "x0"))
    assert len(one.rows("train")) == 2
    assert f"{path} is one of several files of its split" in capsys.readouterr().out


def test_a_split_without_all_of_its_files_is_refused(tmp_path, tokenizer):
    write_shards(tmp_path, 3, [0, 2])
    with pytest.raises(UserError, match=r"train-\*-of-00003 are 3 files, of which 2 are there"):
        open_task("table", tmp_path, tokenizer)


def test_compressed_files_are_those_of_a_split(write, tmp_path, tokenizer):
    content = gzip.compress(b'{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    task = open_task(
        "table", write({"train.jsonl.gz": content, "dev.jsonl.gz": content}), tokenizer
    )
    assert [len(task.rows(split)) for split in ("train", "validation")] == [2, 2]
    with pytest.raises(UserError, match="both train.jsonl and train.jsonl.gz may be the train spl"):
        open_task("table", write({"train.jsonl": gzip.decompress(content)}), tokenizer)
