"""Copies of documents: which are found, and which one stays."""

import itertools
import json
import string
from collections import Counter

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.store import duplicates, engines, minhash, stages
from bert_jax.store.beam import beam_runner
from bert_jax.store.engines import LocalProcesses
from bert_jax.store.part import Part
from bert_jax.store.preparation import prepare
from bert_jax.store.split_writer import SplitWriter
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import built_in_files
from tests.stores import digest, options

VOCABULARY = 8000


def write_split(directory, documents):
    with SplitWriter(directory, VOCABULARY) as writer:
        for tokens in documents:
            writer.append(np.asarray(tokens, np.int32), np.array([len(tokens)]))
    return Part(directory)


def keys_of(split, kind):
    keys = [set() for _ in range(split.num_documents)]
    for document_N, key_N in minhash.document_keys(split, kind):
        for document, key in zip(document_N.tolist(), key_N.tolist(), strict=True):
            keys[document].add(key)
    return keys


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCABULARY, rng.integers(200, 900)) for _ in range(1000)]


@pytest.mark.parametrize("fraction", [0, 0.01, 0.02, 0.05, 0.1])
def test_near_copies_are_found_as_often_as_theory_says(fraction, documents, tmp_path):
    rng = np.random.default_rng(1)
    copies = []
    for tokens in documents:
        copy = tokens.copy()
        replaced = rng.choice(len(copy), round(fraction * len(copy)), replace=False)
        copy[replaced] = rng.integers(1, VOCABULARY, len(replaced))
        copies.append(copy)
    keys = keys_of(write_split(tmp_path / "a", documents), "near")
    others = keys_of(write_split(tmp_path / "b", copies), "near")
    found = np.mean([bool(a & b) for a, b in zip(keys, others, strict=True)])
    same = (1 - fraction) ** 5
    wanted = 1 - (1 - (same / (2 - same)) ** 8) ** 14
    assert abs(found - wanted) < 0.005 + 3 * np.sqrt(wanted * (1 - wanted) / len(documents))
    # Other documents have no key in common.
    assert len(set.union(*keys)) == 14 * len(documents)


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_keys_do_not_depend_on_the_blocks_that_are_read(kind, documents, tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    documents = [rng.integers(1, 50, n) for n in (4, 3, 1, 5, 6, 200, 4, 70, 1, 9)] * 2
    split = write_split(tmp_path / "a", documents)
    keys = keys_of(split, kind)
    for size in (16, 61, 300):
        monkeypatch.setattr(minhash, "_BLOCK_TOKENS", size)
        assert keys_of(split, kind) == keys
    assert keys[:10] == keys[10:]
    for a, b in itertools.combinations(range(10), 2):
        is_same = documents[a].tobytes() == documents[b].tobytes()
        assert bool(keys[a] & keys[b]) == is_same
    number = 14 if kind == "near" else 1
    assert [len(k) for k in keys[:10]] == [1 if len(d) < 5 else number for d in documents[:10]]


def test_clusters_do_not_depend_on_the_order_of_the_pairs():
    rng = np.random.default_rng(3)
    for number, num_pairs in ((1, 0), (50, 20), (300, 200), (300, 2000)):
        pairs = rng.integers(0, number, (num_pairs, 2))
        wanted = list(range(number))
        for a, b in pairs.tolist():
            low, high = sorted((wanted[a], wanted[b]))
            wanted = [low if first == high else first for first in wanted]
        for batches in (1, 7):
            cluster_D = np.arange(number)
            for batch in np.array_split(rng.permutation(pairs), batches):
                duplicates.join(cluster_D, batch)
            assert duplicates.flattened(cluster_D).tolist() == wanted
    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    cluster_D = np.arange(1000)
    duplicates.join(cluster_D, chain[::-1])
    assert not duplicates.flattened(cluster_D).any()


NUM_TEXTS = 30


def speeches():
    return [path.read_text("utf-8").split()[:300] for path in built_in_files()[:NUM_TEXTS]]


def write_copies(folder, is_reversed=False):
    """Writes three files: texts, exact copies of every second one, near copies of every third."""
    folder.mkdir()
    texts = speeches()
    near = [[*text[:100], "elephants", *text[101:]] for text in texts[::3]]
    contents = [texts, texts[::2], near]
    for name, words in zip("cba" if is_reversed else "abc", contents, strict=True):
        lines = [json.dumps({"text": " ".join(text)}) + "\n" for text in words]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return f"{folder}/*"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_copies(tmp_path_factory.mktemp("copies") / "texts")


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Returns a function that prepares a store with a vocabulary of words and letters."""
    words = Counter(word for text in speeches() for word in text).most_common(300)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += dict.fromkeys([word.lower() for word, _ in words if word.isalpha()])
    pieces += [f"##{letter}" for letter in string.ascii_lowercase] + list(string.ascii_lowercase)
    pieces = list(dict.fromkeys(pieces))
    vocab = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    vocab.write_text("\n".join(pieces))
    settings = {"vocab": str(vocab), "duplicates": "near", "heldout_fraction": 0.25}

    def prepared(texts, output, engine=None, part_bytes=20_000, **changes):
        data = options(texts, part_bytes=part_bytes, **settings | changes)
        return prepare(data, len(pieces), output, engine=engine)

    return prepared


def stored(output, split):
    """Returns the documents of a split, each as a tuple of ids."""
    if not (output / split).exists():
        return []
    directories = sorted((output / split).glob("0*")) or [output / split]
    documents = []
    for store in map(Part, directories):
        starts = store.sentence_starts[store.document_starts]
        documents += [
            tuple(store.tokens_at(np.arange(a, b)).tolist()) for a, b in itertools.pairwise(starts)
        ]
    return documents


@pytest.fixture(scope="module")
def all_documents(make, texts, tmp_path_factory):
    output = tmp_path_factory.mktemp("stores") / "keep"
    make(texts, output, duplicates="keep")
    return {split: stored(output, split) for split in ("train", "heldout")}


@pytest.fixture(scope="module")
def store(make, texts, tmp_path_factory):
    output = tmp_path_factory.mktemp("stores") / "near"
    return make(texts, output, LocalProcesses(2)), output


def ngrams(tokens):
    return {tokens[i : i + 5] for i in range(len(tokens) - 4)}


def similarity(a, b):
    return len(ngrams(a) & ngrams(b)) / len(ngrams(a) | ngrams(b))


def test_one_document_of_each_cluster_stays(make, store, texts, all_documents, tmp_path):
    metadata, output = store
    kept = stored(output, "train") + stored(output, "heldout")
    assert len(kept) == NUM_TEXTS
    assert max(similarity(a, b) for a, b in itertools.combinations(kept, 2)) < 0.3
    num_all = sum(map(len, all_documents.values()))
    assert num_all == NUM_TEXTS + 15 + 10
    # The first ones stay, which are all of the first file.
    removed = metadata["report"]["duplicates"]
    assert removed["train_documents"] + removed["heldout_documents"] == num_all - NUM_TEXTS
    assert removed["heldout_documents"] == len(all_documents["heldout"]) - len(
        stored(output, "heldout")
    )
    tokens = sum(len(d) for split in all_documents.values() for d in split)
    left = sum(split["tokens"] for split in metadata["splits"].values())
    assert removed["train_tokens"] + removed["heldout_tokens"] == tokens - left
    assert metadata["dropped_documents"] == {"duplicate": 25}
    folder = texts.removesuffix("*")
    places = [f"{folder}b.jsonl:{line}" for line in (1, 2, 3)]
    assert metadata["first_dropped"] == {"duplicate": places}
    size = sum(split["bytes_of_text"] for split in metadata["splits"].values())
    lines = (tmp_path / folder / "a.jsonl").read_text().splitlines()
    assert size == sum(len(json.loads(line)["text"].encode()) for line in lines)

    # In the other order, another document of the cluster stays.
    texts = write_copies(tmp_path / "texts", is_reversed=True)
    make(texts, tmp_path / "reversed")
    others = stored(tmp_path / "reversed", "train") + stored(tmp_path / "reversed", "heldout")
    matches = [[similarity(a, b) > 0.7 for b in others] for a in kept]
    np.testing.assert_array_equal(np.sum(matches, axis=0), 1)
    np.testing.assert_array_equal(np.sum(matches, axis=1), 1)
    assert set(others) != set(kept)


def test_no_copy_of_a_held_out_document_is_trained_on(store, all_documents):
    metadata, output = store
    train, heldout = stored(output, "train"), stored(output, "heldout")
    found = 0
    for document in heldout:
        assert max(similarity(document, other) for other in train) < 0.3
        found += sum(similarity(document, other) > 0.7 for other in all_documents["train"])
    assert metadata["report"]["duplicates"]["copies_of_heldout"] == found > 0
    # A held-out document that is a copy of one to train on is removed too.
    assert metadata["report"]["duplicates"]["heldout_documents"] > 0


@pytest.mark.parametrize(
    ("kind", "fraction"),
    # With the last one, a single held-out document is left, which is then trained on.
    [("exact", 0.25), ("near", 0.25), ("near", 0.05)],
)
def test_the_number_of_parts_plays_no_role(kind, fraction, make, texts, tmp_path, monkeypatch):
    made, settings = {}, {"duplicates": kind, "heldout_fraction": fraction}
    for number, part_bytes in ((1, 2**27), (2, 60_000), (5, 23_000)):
        assert len(Corpus(texts).parts(part_bytes)) == number
        output = tmp_path / str(number)
        # Several buckets.
        monkeypatch.setattr(duplicates, "_BUCKET_ENTRIES", 50 if number > 1 else 2**20)
        metadata = make(texts, output, part_bytes=part_bytes, **settings)
        made[number] = [stored(output, split) for split in ("train", "heldout")]
        made[number] += [metadata["report"], metadata["splits"], metadata["first_dropped"]]
    assert made[1] == made[2] == made[5]
    assert len(made[1][0] + made[1][1]) == NUM_TEXTS + (10 if kind == "exact" else 0)
    assert bool(made[1][1]) == (fraction == 0.25)


def test_a_corpus_without_copies_gives_the_same_store(make, texts, tmp_path):
    texts = texts.replace("*", "a.jsonl")
    for kind in ("keep", "exact", "near"):
        make(texts, tmp_path / kind, duplicates=kind)
    for part in ("train", "heldout"):
        wanted = digest(tmp_path / "keep" / part)
        assert digest(tmp_path / "exact" / part) == digest(tmp_path / "near" / part) == wanted


@pytest.mark.parametrize(
    "name",
    [
        "FnApiRunner",
        pytest.param("apache_beam.runners.dask.dask_runner.DaskRunner", marks=pytest.mark.slow),
    ],
)
def test_apache_beam_makes_the_same_bytes(name, make, store, texts, tmp_path):
    pytest.importorskip("apache_beam")
    if "dask" in name:
        pytest.importorskip("dask.distributed")
    make(texts, tmp_path / "beam", beam_runner(name, []))
    assert digest(tmp_path / "beam") == digest(store[1])


class Killed(BaseException):
    pass


@pytest.mark.parametrize("stage", ["tokenize", "pairs", "select"])
def test_a_restart_after_a_kill(stage, make, store, texts, tmp_path, monkeypatch):
    done = []

    def run_part(output, run, number, *others):
        if run == stage and len(done) == 1:
            done.append("killed")
            raise Killed
        stages.run_part(output, run, number, *others)
        done.extend([number] * (run == stage))

    # Several buckets, so that there are several parts with pairs to find.
    monkeypatch.setattr(duplicates, "_BUCKET_ENTRIES", 50)
    monkeypatch.setattr(engines, "run_part", run_part)
    with pytest.raises(Killed):
        make(texts, tmp_path / "store", LocalProcesses(1))
    if stage == "select":
        # The part was written, but not yet its result.
        (tmp_path / "store" / "unfinished" / "select-00000.json").unlink()
        assert (tmp_path / "store" / "train" / "00000").exists()
    make(texts, tmp_path / "store", LocalProcesses(1))
    assert digest(tmp_path / "store") == digest(store[1])
    # An unfinished store with other options is replaced.
    done[:] = []
    with pytest.raises(Killed):
        make(texts, tmp_path / "other", LocalProcesses(1), lowercase=False)
    make(texts, tmp_path / "other", LocalProcesses(1))
    assert digest(tmp_path / "other") == digest(store[1])


def test_copies_of_a_single_document_are_refused(make, tmp_path):
    text = " ".join(built_in_files()[0].read_text("utf-8").split()[:300])
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'text': text})}\n" * 50)
    words = r"data.duplicates=exact leaves [01] of 50 documents to train on, .*s to keep"
    with pytest.raises(UserError, match=words):
        make(f"{tmp_path}/a.jsonl", tmp_path / "store", duplicates="exact")
