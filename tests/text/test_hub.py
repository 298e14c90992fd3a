"""hf:// paths, with a file system in memory in place of the Hugging Face Hub."""

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.text.corpus import Corpus
from tests.text.test_row_documents import ROWS, write

FOLDER = "hf://datasets/owner/name"


class Hub:
    """Names files as `HfFileSystem` does: without the scheme and a slash before them."""

    def __init__(self):
        self.memory = MemoryFileSystem(skip_instance_cache=True)

    def glob(self, path, detail):
        return self._named(self.memory.glob(path.removeprefix("hf:/"), detail=detail))

    def find(self, path, detail):
        return self._named(self.memory.find(path.removeprefix("hf:/"), detail=detail))

    def open(self, path, mode):
        return self.memory.open(path.removeprefix("hf:/"), mode)

    @staticmethod
    def _named(found):
        return {name.lstrip("/"): info for name, info in found.items()}


@pytest.fixture
def data_set(tmp_path, monkeypatch):
    remote = Hub()
    for name in ("data/train-0.parquet", "data/train-1.parquet", "data/test-0.parquet", "a.jsonl"):
        path = tmp_path / name.replace("/", "-")
        write(path, [f"{name} {text or 'x'}" for text in ROWS])
        remote.memory.pipe_file(f"/datasets/owner/name/{name}", path.read_bytes())
    remote.memory.pipe_file("/datasets/owner/name/README.md", b"A data set.")
    monkeypatch.setattr(files, "hub_filesystem", lambda: remote)


@pytest.mark.parametrize(
    ("item", "number"),
    [("data/train-*.parquet", 12), ("data", 12), ("a.jsonl", 6), ("**/*.parquet", 18)],
)
def test_files_of_the_hub(data_set, item, number):
    corpus = Corpus(f"{FOLDER}/{item}")
    documents = list(corpus.documents())
    assert len(documents) == number
    assert all(document.source.startswith(f"{FOLDER}/") for document in documents)
    parts = corpus.parts(500)
    assert [d for part in parts for d in corpus.documents(part)] == documents


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (f"{FOLDER}/none*.parquet", "no file matches 'hf://datasets/owner/name/none"),
        ("hf://owner/name", "data.input is hf://owner/name; write hf://datasets/OWNER/NAME/FILES"),
    ],
)
def test_what_is_not_there_is_named(data_set, item, message):
    with pytest.raises(UserError, match=message):
        Corpus(item)
