"""Token stores: their contents, checks and damage."""

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config import default_config
from bert_jax.store import token_store
from bert_jax.store.part import write_parts
from bert_jax.store.preparation import prepare
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.token_store import TokenStore, read_metadata, verify_store, write_metadata
from bert_jax.text.corpus import Corpus
from tests import fake_gcs

DOCUMENTS = st.lists(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), min_size=1, max_size=5),
    min_size=1,
    max_size=12,
)


def append(writer, document):
    lengths = np.array([len(sentence) for sentence in document])
    writer.append(np.concatenate(document).astype(np.int32), lengths)


def write(directory, documents, vocab_size=100, **options):
    with SplitWriter(directory, vocab_size, **options) as writer:
        for document in documents:
            append(writer, document)
    return TokenStore(directory)


def read_back(store):
    tokens = store.tokens_at(np.arange(store.num_tokens)).tolist()
    documents = []
    for number, start in enumerate(store.starts.tokens[:-1]):
        part = store.part(number)
        bounds = itertools.pairwise((start + part.sentence_starts).tolist())
        sentences = [tokens[a:b] for a, b in bounds]
        documents += [sentences[a:b] for a, b in itertools.pairwise(part.document_starts)]
    return documents


@settings(max_examples=30)
@given(documents=DOCUMENTS, shard_tokens=st.sampled_from([1, 7, 2**26]))
def test_round_trip(tmp_path_factory, documents, shard_tokens):
    directory = tmp_path_factory.mktemp("store")
    store = write(directory, documents, shard_tokens=shard_tokens)
    assert read_back(store) == documents
    flat = [token for d in documents for s in d for token in s]
    assert (store.num_documents, store.num_tokens) == (len(documents), len(flat))
    assert store.token_counts.tolist() == np.bincount(flat, minlength=100).tolist()
    # Shards end where documents do.
    shard_starts = np.load(directory / "shard_starts.npy")
    part = store.part(0)
    assert set(shard_starts) <= set(part.sentence_starts[part.document_starts])
    positions = np.random.default_rng(0).integers(0, len(flat), (3, 5))
    found = store.tokens_at(positions)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, np.array(flat)[positions])


@pytest.mark.parametrize("vocab_size, width", [(65536, 2), (65537, 4)])
def test_highest_id_is_stored_exactly(vocab_size, width, tmp_path):
    store = write(tmp_path, [[[0, vocab_size - 1]]], vocab_size)
    assert store.tokens_at(np.array([1])).tolist() == [vocab_size - 1]
    assert (tmp_path / "tokens-00000.bin").stat().st_size == 2 * width


def test_an_unfinished_split_does_not_open(tmp_path):
    with pytest.raises(RuntimeError), SplitWriter(tmp_path, 10) as writer:
        append(writer, [[1]])
        raise RuntimeError
    with pytest.raises(FileNotFoundError, match="token_counts.npy"):
        TokenStore(tmp_path)


def test_damage_is_detected(tmp_path):
    store = {"tokenizer": {}, "splits": {"train": {}}}
    write_in_parts(tmp_path / "train", [[[1, 2, 3]], [[4]]], (1,), np.arange(4) > 1)
    write_metadata(tmp_path, store)
    # Six files and their sums, twice, and the sum of the token counts.
    assert verify_store(tmp_path) == 2 * 6 + 1
    part = tmp_path / "train" / "00000"
    names = [path.name for path in part.iterdir() if path.name != "checksums.json"]
    assert len(names) == 6
    for path in (*(part / name for name in names), tmp_path / "train" / "token_counts.npy"):
        content = bytearray(path.read_bytes())
        path.write_bytes(content[:-1])
        words = f"{path.name} (is damaged: remove the token|should have . bytes but has .: prepare)"
        with pytest.raises(UserError, match=words):
            TokenStore(tmp_path / "train").part(0)
        path.unlink()
        if path.name != "word_starts.bin":
            with pytest.raises((UserError, FileNotFoundError), match=path.name):
                TokenStore(tmp_path / "train").part(0)
        with pytest.raises(FileNotFoundError, match=path.name):
            verify_store(tmp_path)
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(UserError, match=f"{path.name} is damaged"):
            verify_store(tmp_path)
        if path.suffix == ".npy":
            with pytest.raises(UserError, match=f"{path.name} is damaged"):
                TokenStore(tmp_path / "train").part(0)
        content[-1] ^= 1
        path.write_bytes(content)
    # A store of an older version has other checksums.
    (part / "checksums.json").unlink()
    assert TokenStore(tmp_path / "train").tokens_at(np.arange(4)).tolist() == [1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="checksums.json"):
        verify_store(tmp_path)


METADATA = {
    "tokenizer": {"kind": "wordpiece", "fingerprint": "é"},
    "vocab_size": 10,
    "splits": {"train": {"documents": 1, "sentences": 2, "tokens": 3, "bytes_of_text": 4}},
    "dropped_documents": {},
    "first_dropped": {},
    "options": {
        "input": ["a.txt"],
        "format": "auto",
        "vocab": "",
        "vocab_path": "",
        "tokenizer": "",
    },
    "sources": [{"path": "a.txt", "bytes": 4}, {"tfds": "x", "field": "text", "version": "1"}],
}


def write_in_parts(directory, documents, cuts, begins_word=None):
    """Writes a split whose parts begin at document 0 and at the documents `cuts`."""
    counts, at = {}, 0
    for number, (first, stop) in enumerate(itertools.pairwise([0, *cuts, len(documents)])):
        name = f"{3 * number:05d}"  # Parts without documents are left out.
        with SplitWriter(directory / name, 100) as writer:
            for document in documents[first:stop]:
                lengths = np.array([len(sentence) for sentence in document])
                tokens = np.concatenate(document).astype(np.int32)
                words = None if begins_word is None else begins_word[at : at + len(tokens)]
                writer.append(tokens, lengths, begins_word=words)
                at += len(tokens)
        counts[name] = writer.counts
    write_parts(directory, counts, has_words=begins_word is not None)


@settings(max_examples=20)
@given(documents=DOCUMENTS, cuts=st.sets(st.integers(1, 11)), has_words=st.booleans())
def test_parts_read_like_one_part(tmp_path_factory, documents, cuts, has_words):
    directory = tmp_path_factory.mktemp("store")
    cuts = sorted(cut for cut in cuts if cut < len(documents))
    num_tokens = sum(len(sentence) for document in documents for sentence in document)
    begins_word = np.random.default_rng(0).random(num_tokens) < 0.6
    write_in_parts(directory, documents, cuts, begins_word if has_words else None)
    store, one = TokenStore(directory), write(directory / "one", documents)
    assert store.num_parts == len(cuts) + 1 and store.starts.documents[:-1].tolist() == [0, *cuts]
    for name in ("num_documents", "num_sentences", "num_tokens"):
        assert getattr(store, name) == getattr(one, name)
    assert read_back(store) == documents
    assert store.token_counts.tolist() == one.token_counts.tolist()
    positions = np.random.default_rng(0).integers(0, num_tokens, (3, 5))
    found = store.tokens_at(positions)
    assert found.dtype == np.int32 and np.array_equal(found, one.tokens_at(positions))
    assert store.has_words == has_words
    if has_words:
        assert np.array_equal(store.word_starts_at(positions), begins_word[positions])


def test_parts_are_opened_when_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "_OPEN_PARTS", 3)
    write_in_parts(tmp_path, [[[n]] for n in range(40)], range(1, 40))
    store = TokenStore(tmp_path)
    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()
    assert store.tokens_at(np.arange(40)).tolist() == list(range(40))
    if before:
        assert len(set(os.listdir("/proc/self/fd")) - before) <= 3 * 6
    (tmp_path / "00030").rename(tmp_path / "moved")
    assert TokenStore(tmp_path).tokens_at(np.array([9, 11])).tolist() == [9, 11]
    with pytest.raises(FileNotFoundError, match="00030/token_counts.npy"):
        TokenStore(tmp_path).tokens_at(np.array([10]))


def test_a_store_in_a_bucket_is_fetched_as_it_is_read(bucket, tmp_path, monkeypatch):
    """Counts the bytes of each object that are read."""
    read = Counter()
    media = fake_gcs._Handler._media

    def counted(handler, content, generation):
        status, headers, content = media(handler, content, generation)
        read[unquote(handler.path.partition("/o/")[2].partition("?")[0])] += len(content)
        return status, headers, content

    tokens = np.random.default_rng(0).integers(0, 100, 200_000)
    documents = [[tokens.tolist()], [[7] * 5], [[8] * 5]]
    words = np.arange(200_010) % 3 == 0
    write_in_parts(tmp_path, documents, (1, 2), words)
    root = epath.Path(f"gs://{bucket}/train")
    files.filesystem().put(str(tmp_path), str(root), recursive=True)
    monkeypatch.setattr(fake_gcs._Handler, "_media", counted)
    store = TokenStore(root)
    assert set(read) == {f"train/{n}" for n in ("parts.json", "token_counts.npy", "checksums.json")}
    read.clear()
    # Chunks 0, 1 and 5 of 65,536 bytes; the last is shorter.
    positions = np.array([[5, 40_000], [199_999, 10]])
    for _ in range(2):
        assert store.tokens_at(positions).tolist() == tokens[positions].tolist()
    assert read["train/00000/tokens-00000.bin"] == 2 * 65_536 + 400_000 - 6 * 65_536
    assert store.word_starts_at(np.array([9, 10])).tolist() == [True, False]
    assert not any("/0000" in name and "/00000" not in name for name in read)
    # Chunks 2 and 3, and all of another part.
    read.clear()
    store.fetch([(70_000, 131_000), (200_000, 200_005)])
    assert read["train/00000/tokens-00000.bin"] == 2 * 65_536
    assert read["train/00003/tokens-00000.bin"] == 10
    read.clear()
    positions = np.array([65_536, 131_071, 200_004])
    assert store.tokens_at(positions).tolist() == [*tokens[positions[:2]], 7]
    assert store.word_starts_at(positions).tolist() == words[positions].tolist()
    assert not read
    store = TokenStore(root)
    (root / "00006" / "tokens-00000.bin").write_bytes(b"123")
    with pytest.raises(UserError, match="gs://.*00006/tokens-.* should have 10 bytes but has 3"):
        store.tokens_at(np.array([200_009]))


def test_metadata(tmp_path):
    with pytest.raises(UserError, match="holds no finished token store"):
        read_metadata(tmp_path)
    write_metadata(tmp_path, METADATA)
    assert read_metadata(tmp_path) == {"format_version": 1} | METADATA
    # Without checksums, it is that of an older version.
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    del metadata["checksums"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    assert read_metadata(tmp_path) == {"format_version": 1} | METADATA
    assert os.listdir(tmp_path) == ["metadata.json"]
    (tmp_path / "metadata.json").write_text(json.dumps({"format_version": 0}))
    with pytest.raises(UserError, match="version 0, but this program reads versions 1 and 2"):
        read_metadata(tmp_path)


def test_one_flipped_bit_of_what_a_run_reads_is_found(tmp_path):
    """Or it changes nothing: a letter of the name of a checksum, which then is not compared."""
    write_in_parts(tmp_path / "train", [[[1, 2, 3]], [[4]]], (1,), np.arange(4) > 1)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\nword\n")
    write_metadata(tmp_path, METADATA | {"splits": {"train": {"documents": 2, "sentences": 326}}})

    def opened():
        metadata, store = read_metadata(tmp_path), TokenStore(tmp_path / "train")
        found = [store.part(number).sentence_starts.tolist() for number in range(2)]
        vocabulary = (tmp_path / "tokenizer" / "vocab.txt").read_bytes()
        sizes = store.num_sentences, store.token_counts.tolist(), store.starts.sentences.tolist()
        return metadata, vocabulary, found, sizes

    expected, rng = opened(), np.random.default_rng(0)
    paths = [path for path in tmp_path.rglob("*.*") if path.suffix != ".bin"]
    assert len(paths) == 1 + 1 + 3 + 2 * 5
    for path in paths:
        content, num_refused = path.read_bytes(), 0
        positions = rng.permutation(len(content))[:150]
        for position in positions:
            flipped = bytearray(content)
            flipped[position] ^= 1 << rng.integers(8)
            path.write_bytes(flipped)
            try:
                metadata, *found = opened()
            except (UserError, OSError):
                num_refused += 1
            else:
                assert found == list(expected[1:]), (path, position)
                assert metadata.items() >= expected[0].items(), (path, position)
        path.write_bytes(content)
        assert num_refused > len(positions) / 2, path


def test_a_full_disk_names_the_directory(tmp_path):
    writer = SplitWriter(tmp_path, 10)
    os.symlink("/dev/full", tmp_path / "tokens-00000.bin")
    with pytest.raises(OSError, match="No space left") as info:
        for _ in range(100):
            append(writer, [[1] * 10_000])
    assert info.value.filename == str(tmp_path)


MEMORY = """
import sys, numpy as np
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.token_store import TokenStore
def peak():
    return int(next(l for l in open("/proc/self/status") if "VmHWM" in l).split()[1]) / 1024
before = peak()
with SplitWriter(sys.argv[1], 1000) as writer:
    for i in range(4000):
        writer.append(np.full(20_000, i % 1000, np.int32), np.full(200, 100))
store = TokenStore(sys.argv[1])
store.tokens_at(np.arange(0, store.num_tokens, 100_000))
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    # 80 million tokens: 320 MB as int32.
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert float(output) < 60


def test_texts_prepared_in_a_bucket(bucket, tmp_path):
    """Compares the bytes of a store prepared in a bucket with one prepared on a disk."""
    texts = {
        "a.txt": "One fish. Two fish.\n\nRed fish here.",
        "b.jsonl": '{"text": "Blue fish. Old fish."}\n{"text": "New fish. This one is."}\n',
        "c.txt": "A little star.\nAnother car.\n\nThey are not sad.\nThey are glad.\n\n" * 9,
    }
    words = "one two red blue old new fish here this is a little star another car they".split()
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] . are not sad glad".split() + words
    texts["vocab"] = "".join(f"{word}\n" for word in vocabulary)
    made = {}
    for root in (epath.Path(tmp_path), epath.Path(f"gs://{bucket}")):
        for name, text in texts.items():
            (root / "texts").mkdir(parents=True, exist_ok=True)
            (root / "texts" / name).write_text(text)
        data = default_config().data
        data.input, data.vocab = (f"{root}/texts/*.*",), f"{root}/texts/vocab"
        data.num_processes, data.heldout_fraction = 2, 0.2
        if files.is_remote(root):
            files.write_whole(root / "store" / "unfinished" / "count-00000.json", b"left by a kill")
        made[root] = prepare(data, len(vocabulary), root / "store")
        # A second call returns the existing store.
        assert prepare(data, len(vocabulary), root / "store") == made[root]
    disk, remote = made
    assert made[disk]["splits"] == made[remote]["splits"]
    written = {p.relative_to(disk).as_posix() for p in Path(disk, "store").rglob("*.*")}
    assert written == {f"store/{name}" for name in files.list_files(remote / "store")}
    for name in written - {"store/metadata.json"}:  # The metadata contain the paths of the sources.
        assert (remote / name).read_bytes() == (disk / name).read_bytes(), name
    ours, theirs = (TokenStore(root / "store" / "train") for root in made)
    positions = np.random.default_rng(0).integers(0, theirs.num_tokens, (5, 7))
    assert np.array_equal(ours.tokens_at(positions), theirs.tokens_at(positions))
    files.write_whole(remote / "other" / "notes.txt", b"mine")
    with pytest.raises(UserError, match="other holds notes.txt, which is not part of an"):
        prepare(data, len(vocabulary), remote / "other")
    with pytest.raises(UserError, match="no file matches 'gs:"):
        Corpus(f"gs://{bucket}/none/*.txt")
