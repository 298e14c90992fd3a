"""Files in object storage read at random: right, once, and no more than is asked for."""

import threading

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.data import remote_file
from bert_jax.data.corpus import Corpus
from bert_jax.data.remote_file import CachedArray, open_npy
from bert_jax.data.store import SplitWriter, TokenStore
from bert_jax.errors import UserError
from bert_jax.prepare import prepare
from tests.data.fakes import make_documents

BLOCK = 64


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def array(bucket, gcs_server):
    """Values 0 to 999 in blocks of 32, and how many bytes have been fetched of them."""
    gcs_server.put(bucket, "x.bin", np.arange(1000, dtype="<u2").tobytes())
    asked = len(gcs_server.requests)

    def num_bytes():
        return sum(r.num_bytes for r in gcs_server.requests[asked:])

    return CachedArray(f"gs://{bucket}/x.bin", np.dtype("<u2"), 1000), num_bytes


def test_values_are_those_of_the_file(array):
    values, num_bytes = array
    positions = np.random.default_rng(0).integers(0, 1000, (20, 30))
    assert np.array_equal(values[positions], positions)
    assert np.array_equal(values[np.arange(1000)], np.arange(1000))
    assert num_bytes() == 2000, "every byte once"


def test_only_what_is_asked_for_is_fetched_and_once(array):
    values, num_bytes = array
    assert values[np.array([33, 63, 40])].tolist() == [33, 63, 40]
    assert num_bytes() == BLOCK
    assert values[np.array([32, 999])].tolist() == [32, 999]
    assert num_bytes() == BLOCK + 2000 % BLOCK
    assert values[np.zeros(0, np.int64)].size == 0


def test_threads_share_what_is_fetched(array):
    values, num_bytes = array
    wrong = []

    def read(seed):
        positions = np.random.default_rng(seed).integers(0, 1000, 500)
        if not np.array_equal(values[positions], positions):
            wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and num_bytes() == 2000


def test_a_value_may_lie_across_blocks(bucket, gcs_server):
    dtype = np.dtype([("a", "<i4", (5,)), ("b", "u1")])
    rows = np.zeros(40, dtype)
    rows["a"], rows["b"] = np.arange(200).reshape(40, 5), np.arange(40)
    gcs_server.put(bucket, "rows", rows.tobytes())
    assert dtype.itemsize == 21, "does not divide a block"
    found = CachedArray(f"gs://{bucket}/rows", dtype, 40)
    assert len(found) == 40
    for i in range(40):
        assert found[np.array([i])].tobytes() == rows[i : i + 1].tobytes()


def test_what_could_not_be_fetched_is_asked_for_again(array, bucket, gcs_server):
    values, _ = array
    stored = gcs_server.buckets[bucket].pop("x.bin")
    with pytest.raises(OSError):
        values[np.array([5])]
    gcs_server.buckets[bucket]["x.bin"] = stored
    assert values[np.array([5])] == [5]


def test_npy_files(bucket, gcs_server, tmp_path):
    from etils import epath

    vector = np.arange(300, dtype=np.int64)
    np.save(tmp_path / "v.npy", vector)
    gcs_server.put(bucket, "v.npy", (tmp_path / "v.npy").read_bytes())
    assert np.array_equal(open_npy(epath.Path(f"gs://{bucket}/v.npy")), vector)
    gcs_server.put(bucket, "v.npy", (tmp_path / "v.npy").read_bytes()[:-8])
    with pytest.raises(ValueError):
        open_npy(epath.Path(f"gs://{bucket}/v.npy"))


def test_a_split_is_byte_for_byte_that_of_a_disk(bucket, gcs_server, tmp_path):
    rng = np.random.default_rng(1)
    documents = [[rng.integers(0, 50, n) for n in d] for d in make_documents()]
    for directory in (f"gs://{bucket}/split", tmp_path):
        with SplitWriter(directory, 50, shard_tokens=600) as writer:
            for document in documents:
                writer.append(document)
    local = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(local) > 6, "several shards"
    assert gcs_server.names(bucket) == sorted(f"split/{name}" for name in local)
    for name, content in local.items():
        assert gcs_server.data(bucket, f"split/{name}") == content
    ours, theirs = TokenStore(f"gs://{bucket}/split"), TokenStore(tmp_path)
    positions = rng.integers(0, theirs.num_tokens, (50, 7))
    assert np.array_equal(ours.tokens_at(positions), theirs.tokens_at(positions))
    assert np.array_equal(ours.sentence_starts, theirs.sentence_starts)
    gcs_server.put(bucket, "split/tokens-00001.bin", b"short")
    with pytest.raises(UserError, match="tokens-00001.bin should have .* bytes but has 5"):
        TokenStore(f"gs://{bucket}/split")


def test_texts_prepared_there_and_from_there(bucket, gcs_server, tmp_path):
    """Text, vocabulary and store in a bucket give the store that they give on a disk."""
    (tmp_path / "texts").mkdir()
    texts = {
        "a.txt": "One fish. Two fish.\n\nRed fish here.",
        "b.jsonl": '{"text": "Blue fish. Old fish."}\n{"text": "New fish. This one is."}\n',
        "c.txt": "A little star.\nAnother car.\n\nThey are not sad.\nThey are glad.\n\n" * 9,
    }
    words = "one two red blue old new fish here this is a little star another car they".split()
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] . are not sad glad".split() + words
    texts["vocab"] = "".join(f"{word}\n" for word in vocabulary)
    for name, text in texts.items():
        (tmp_path / "texts" / name).write_text(text)
        gcs_server.put(bucket, f"texts/{name}", text.encode())
    made = {}
    for root, where in ((tmp_path, "disk"), (f"gs://{bucket}", "bucket")):
        data = default_config().data
        data.input, data.vocab = (f"{root}/texts/*.*",), f"{root}/texts/vocab"
        data.num_processes, data.heldout_fraction = 2, 0.2
        made[where] = prepare(data, len(vocabulary), f"{root}/store", show_progress=False)
        # A second call reads what is there.
        assert prepare(data, len(vocabulary), f"{root}/store") == made[where]
    assert made["bucket"]["splits"] == made["disk"]["splits"]
    assert [s["bytes"] for s in made["bucket"]["sources"]] == [
        s["bytes"] for s in made["disk"]["sources"]
    ]
    for path in (tmp_path / "store").rglob("*.*"):
        name = path.relative_to(tmp_path).as_posix()
        if path.name != "metadata.json":  # names its sources
            assert gcs_server.data(bucket, name) == path.read_bytes(), name
    gcs_server.put(bucket, "other/notes.txt", b"mine")
    with pytest.raises(UserError, match="other holds notes.txt, which is no part of an unfinished"):
        prepare(data, len(vocabulary), f"gs://{bucket}/other", show_progress=False)
    assert gcs_server.data(bucket, "other/notes.txt") == b"mine"
    with pytest.raises(UserError, match="but no object matches it"):
        Corpus(f"gs://{bucket}/none/*.txt")


def test_a_store_left_unfinished_there_is_replaced(bucket, gcs_server):
    for name in ("a", "b"):
        gcs_server.put(bucket, f"{name}.txt", b"A sentence. And one more here.")
    gcs_server.put(bucket, "store/train/tokens-00007.bin", b"left by a killed run")
    data = default_config().data
    data.input, data.num_processes, data.heldout_fraction = (f"gs://{bucket}/*.txt",), 1, 0.0
    prepare(data, 60, f"gs://{bucket}/store", show_progress=False)
    assert "store/train/tokens-00007.bin" not in gcs_server.names(bucket)
    assert TokenStore(f"gs://{bucket}/store/train").num_documents == 2
