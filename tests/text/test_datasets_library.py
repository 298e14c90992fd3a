"""Folders and files that `datasets` writes, read as `datasets` reads them."""

import random
import shutil

import pytest

from bert_jax.base.errors import UserError
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.corpus import Corpus
from bert_jax.text.tables import read_rows

pytestmark = pytest.mark.outside
datasets = pytest.importorskip("datasets")

TEXTS = [f"This is text number {i}." for i in range(40)]


def texts(path, **options):
    return [document.text for document in Corpus(str(path), **options).documents()]


def fill_caches(path):
    """Leaves the files in a saved folder that `map` and its like write beside the data."""
    saved = datasets.load_from_disk(str(path))
    parts = saved.values() if isinstance(saved, dict) else [saved]
    for part in parts:
        part.map(lambda row: {"text": row["text"], "length": len(row["text"])})
        part.map(lambda row: {"other": row["text"]}, remove_columns=part.column_names, num_proc=2)
        part.shuffle(seed=0)
        part.filter(lambda row: row["text"].endswith("1."))
        part.sort("text")
    return path


@pytest.mark.parametrize("shards", [1, 3])
def test_a_saved_folder_has_only_its_own_rows(tmp_path, shards):
    data = datasets.Dataset.from_dict({"text": TEXTS})
    data.save_to_disk(str(tmp_path / "one"), num_shards=shards)
    assert texts(tmp_path / "one") == TEXTS
    fill_caches(tmp_path / "one")
    assert len([*(tmp_path / "one").glob("cache-*.arrow")]) >= 4
    assert texts(tmp_path / "one") == datasets.load_from_disk(str(tmp_path / "one"))["text"][:]
    # A later version of the data has fewer files.
    data.select(range(7)).save_to_disk(str(tmp_path / "one"), num_shards=1)
    assert texts(tmp_path / "one") == TEXTS[:7]


def test_a_saved_folder_of_several_splits_stands_for_train(tmp_path):
    parts = {"train": TEXTS[:30], "validation": TEXTS[30:], "test": TEXTS[:3]}
    data = {name: datasets.Dataset.from_dict({"text": part}) for name, part in parts.items()}
    datasets.DatasetDict(data).save_to_disk(str(tmp_path), num_shards=dict.fromkeys(parts, 2))
    fill_caches(tmp_path)
    assert texts(tmp_path) == parts["train"]
    assert texts(tmp_path / "test") == parts["test"]
    (tmp_path / "train" / "data-00001-of-00002.arrow").unlink()
    words = r"train/data-\*-of-00002 are 2 files, of which 1 are there"
    with pytest.raises(UserError, match=words):
        texts(tmp_path)
    # What is named is read, but no caches.
    left = texts(tmp_path / "train" / "*.arrow")
    assert left == parts["train"][: len(left)] and left
    assert texts(tmp_path / "test") == parts["test"]


def test_the_cache_of_a_data_set_has_only_its_own_rows(tmp_path):
    """`load_dataset` leaves no state.json."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "train.jsonl").write_text("".join(f'{{"text": "{t}"}}\n' for t in TEXTS))
    source = str(tmp_path / "in" / "train.jsonl")
    data = datasets.load_dataset("json", data_files=source, cache_dir=str(tmp_path / "cache"))
    data["train"].map(lambda row: {"text": row["text"] + "."})
    folder = tmp_path / "cache"
    assert list(folder.rglob("cache-*.arrow")) and list(folder.rglob("dataset_info.json"))
    assert texts(folder) == TEXTS


def test_links_of_the_cache_of_the_hub_are_followed(tmp_path):
    """Their targets have the names of hashes."""
    datasets.Dataset.from_dict({"text": TEXTS}).to_parquet(str(tmp_path / "blob"))
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "train-00000-of-00001.parquet").symlink_to(tmp_path / "blob")
    assert texts(tmp_path / "snapshot") == TEXTS


ROWS = {
    "text": ["a", "b", "", None],
    "label": [1, -1, 0, None],
    "topics": [[1, 0], [], None, [1]],
    "words": [["x", None], [], None, ["y"]],
    "score": [0.5, float("nan"), None, 2.0],
    "ok": [True, False, None, True],
}
CLASS = ["no", "yes"]


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "csv"])
def test_rows_are_those_of_datasets(tmp_path, format):
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=CLASS),
            "topics": datasets.List(datasets.ClassLabel(names=CLASS)),
            "words": datasets.List(datasets.Value("string")),
            "score": datasets.Value("float32"),
            "ok": datasets.Value("bool"),
        }
    )
    data = datasets.Dataset.from_dict(ROWS, features=features)
    path = tmp_path / f"x.{format}"
    if format == "arrow":
        data.save_to_disk(str(tmp_path))
        path = tmp_path / "data-00000-of-00001.arrow"
    else:
        {"parquet": data.to_parquet, "jsonl": data.to_json, "csv": data.to_csv}[format](str(path))
    found = [row.values for row in read_rows(path, (), BadRecords())]
    has_names = format in ("arrow", "parquet")
    assert [row["text"] for row in found] == ["a", "b", "", ""]
    assert [float(row["score"] or -1) for row in found] == [0.5, -1, -1, 2]
    assert [row["ok"].lower() for row in found] == ["true", "false", "", "true"]
    labels = ["yes", "", "no", ""] if has_names else ["1", "-1", "0", ""]
    assert [row["label"].removesuffix(".0") for row in found] == labels
    if format != "csv":
        named = [[CLASS[i] if has_names else i for i in x or []] or x for x in ROWS["topics"]]
        assert [row["topics"] for row in found] == ["" if x is None else x for x in named]
        assert [row["words"] for row in found] == [
            x if x is not None else "" for x in ROWS["words"]
        ]


def test_shards_of_a_split_are_a_corpus_in_order(tmp_path):
    data = datasets.Dataset.from_dict({"text": TEXTS})
    order = list(range(5))
    random.Random(0).shuffle(order)
    for i in order:
        name = tmp_path / "data" / f"train-{i:05}-of-00005.parquet"
        name.parent.mkdir(exist_ok=True)
        data.shard(5, i, contiguous=True).to_parquet(str(name))
    assert texts(tmp_path) == TEXTS
    shutil.copy(name, tmp_path / "data" / "test-00000-of-00002.parquet")
    # Only what is read must be whole.
    assert texts(tmp_path) == TEXTS
    name.unlink()
    with pytest.raises(UserError, match="are 5 files, of which 4 are there"):
        texts(tmp_path)
