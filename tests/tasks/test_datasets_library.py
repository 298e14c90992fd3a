"""Tasks on what `datasets` writes: all files of a split, and the numbers of classes."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.task_sections import GLUE_TASKS
from bert_jax.studies.sweep import task_config
from tests.interop.small_bert import make_tokenizer
from tests.tasks.conftest import open_task

pytestmark = pytest.mark.outside
datasets = pytest.importorskip("datasets")

TOKENIZER = make_tokenizer()
NAMES = ["so-so", "good", "bad"]


def make(number, **columns):
    features = {"text": datasets.Value("string")} | {
        name: kind for name, (kind, _) in columns.items()
    }
    rows = {"text": [f"a {'b ' * (i % 5)}" for i in range(number)]}
    rows |= {name: [value(i) for i in range(number)] for name, (_, value) in columns.items()}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def save(data, folder, form, shards):
    if form == "saved":
        data.save_to_disk(str(folder), num_shards=shards)
        datasets.load_from_disk(str(folder)).map(lambda row: {"text": "c"})
        return
    for i in range(shards):
        path = folder / "data" / f"train-{i:05}-of-{shards:05}.parquet"
        path.parent.mkdir(exist_ok=True, parents=True)
        data.shard(shards, i, contiguous=True).to_parquet(str(path))


@pytest.mark.parametrize("form", ["saved", "hub"])
@pytest.mark.parametrize("shards", [1, 3])
def test_labels_are_the_numbers_of_the_data(tmp_path, form, shards):
    """`id2label` of an export is the order of `labels`."""
    topics = datasets.List(datasets.ClassLabel(names=NAMES))
    data = make(
        30,
        label=(datasets.ClassLabel(names=NAMES), lambda i: i % 3),
        topics=(topics, lambda i: [i % 3] * (i % 2)),
        vector=(datasets.List(datasets.Value("float32")), lambda i: [i % 2, 0, 1]),
    )
    save(data, tmp_path, form, shards)
    task = open_task("table", tmp_path, TOKENIZER)
    assert task.labels == tuple(NAMES)
    task.parts = ()
    assert task.rows("train").labels_N.tolist() == data["label"][:]
    options = {"multi_label": True}
    task = open_task("table", tmp_path, TOKENIZER, label_column="topics", **options)
    task.parts = ()
    found = [[i for i in range(3) if row[i]] for row in task.rows("train").labels_N]
    assert task.labels == tuple(NAMES) and found == data["topics"][:]
    task = open_task("table", tmp_path, TOKENIZER, label_column="vector", **options)
    task.parts = ()
    assert task.rows("train").labels_N.tolist() == data["vector"][:]


@pytest.mark.parametrize("plain", [False, True])
def test_tags_are_the_numbers_of_the_data(tmp_path, plain):
    names = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    rows = {"tokens": [["a", "b", "c"]] * 6, "ner_tags": [[1, 2, 0], [3, 4, 1]] * 3}
    features = {
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=names)),
    }
    data = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    data.save_to_disk(str(tmp_path))
    task = open_task("ner", tmp_path, TOKENIZER, plain_tags=plain)
    assert task.labels == tuple(names)
    task.parts = ()
    rows = task.rows("train").take(np.arange(2))["labels"]
    assert [row[row >= 0].tolist() for row in rows] == data["ner_tags"][:2]
    assert [*task.class_counts()] == (names if plain else ["PER", "LOC"])


def test_a_saved_folder_that_lacks_a_file_is_refused(tmp_path):
    save(make(9, label=(datasets.Value("int64"), lambda i: i % 2)), tmp_path, "saved", 3)
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(UserError, match="are 3 files, of which 2 are there"):
        open_task("table", tmp_path, TOKENIZER)


@pytest.mark.parametrize("form", ["saved", "hub", "json"])
@pytest.mark.parametrize("name", GLUE_TASKS)
def test_glue_of_the_hub(name, form, tmp_path):
    """The columns and classes are those of TensorFlow Datasets, from which `datasets` has them."""
    glue = pytest.importorskip("tensorflow_datasets.text.glue")
    (theirs,) = (found for found in glue.Glue.BUILDER_CONFIGS if found.name == name)
    texts, classes = [*theirs.text_features], theirs.label_classes
    label = datasets.ClassLabel(names=classes) if classes else datasets.Value("float32")
    values = [i % len(classes) for i in range(9)] if classes else [i / 2 for i in range(9)]
    features = dict.fromkeys(texts, datasets.Value("string")) | {"label": label}
    features["idx"] = datasets.Value("int32")
    rows = {column: [f"a {i}" for i in range(9)] for column in texts} | {"idx": [*range(9)]}
    folder = tmp_path / name
    kinds = ["_matched", "_mismatched"] if name == "mnli" else [""]
    splits = ["train", *(f"{split}{kind}" for split in ("validation", "test") for kind in kinds)]
    for split in splits:
        known = {"label": [-1] * 9 if split.startswith("test") else values}
        data = datasets.Dataset.from_dict(rows | known, features=datasets.Features(features))
        if form == "saved":
            data.save_to_disk(str(folder / split))
        elif form == "hub":
            data.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
        else:
            data.to_json(str(folder / f"{split}.jsonl"))
    task = open_task(name, folder, TOKENIZER)
    assert [*task.splits] == splits
    found = task.rows("train").labels_N
    if classes:
        assert [task.labels[i] for i in found] == [classes[i] for i in values]
    else:
        assert found.tolist() == values
    assert task.rows(splits[-1]).ids == [str(i) for i in range(9)]
    assert task.rows("train").take(np.arange(1))["token_type_ids"].any() == (len(texts) == 2)
    both = task_config(ConfigDict({"task": "all", "data": {"input": str(tmp_path)}}), name)
    assert both.data.input == str(folder)
