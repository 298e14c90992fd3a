"""Copies of documents: which are found, and which one stays."""

import itertools
import json
import string
from collections import Counter

import numpy as np
import pytest

from bert_jax.store.engines import LocalProcesses
from bert_jax.store.heldout import HeldOut
from bert_jax.store.part import Part
from bert_jax.store.preparation import prepare
from bert_jax.text.corpus import Corpus
from bert_jax.text.sources import built_in_files
from tests.stores import options, parts_of

NUM_TEXTS = 30


def speeches():
    return [path.read_text("utf-8").split()[:300] for path in built_in_files()[:NUM_TEXTS]]


def write_copies(folder):
    """Writes three files: texts, every second one again, and every third one in capitals."""
    folder.mkdir()
    texts = speeches()
    capitals = [[word.upper() for word in text] for text in texts[::3]]
    for name, words in zip("abc", [texts, texts[::2], capitals], strict=True):
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
    settings = {"vocab": str(vocab), "duplicates": "exact", "heldout_fraction": 0.25}

    def prepared(texts, output, engine=None, part_bytes=20_000, **changes):
        with parts_of(part_bytes):
            data = options(texts, **settings | changes)
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
    output = tmp_path_factory.mktemp("stores") / "exact"
    return make(texts, output, LocalProcesses(2)), output


def test_the_first_of_equal_documents_stays(store, texts, all_documents):
    metadata, output = store
    splits = {split: iter(found) for split, found in all_documents.items()}
    num_all = sum(map(len, all_documents.values()))
    assert num_all == NUM_TEXTS + 15 + 10
    wanted, kinds, seen = {"train": [], "heldout": []}, set(), {}
    for number in range(num_all):
        split = "heldout" if number in HeldOut(0.25) else "train"
        tokens = next(splits[split])
        if tokens not in seen:
            wanted[split].append(tokens)
        else:
            kinds.add((seen[tokens], split))
        seen.setdefault(tokens, split)
    assert {split: stored(output, split) for split in wanted} == wanted
    # All kinds of copies occur.
    assert len(kinds) == 4
    assert metadata["dropped_documents"] == {"duplicate": 25}
    folder = texts.removesuffix("*")
    places = [f"{folder}b.jsonl:{line}" for line in (1, 2, 3)]
    assert metadata["first_dropped"] == {"duplicate": places}
    size = sum(split["bytes_of_text"] for split in metadata["splits"].values())
    assert size == sum(len(" ".join(text).encode()) for text in speeches())


def test_the_number_of_parts_plays_no_role(make, texts, tmp_path):
    made = {}
    for number, part_bytes in ((1, 2**27), (2, 60_000), (5, 23_000)):
        assert len(Corpus(texts).parts(part_bytes)) == number
        output = tmp_path / str(number)
        metadata = make(texts, output, part_bytes=part_bytes)
        made[number] = [stored(output, split) for split in ("train", "heldout")]
        made[number] += [metadata["report"], metadata["splits"], metadata["first_dropped"]]
    assert made[1] == made[2] == made[5]
    assert len(made[1][0] + made[1][1]) == NUM_TEXTS and made[1][1]


def test_capitals_make_other_words_unless_the_text_is_lower_cased(make, texts, tmp_path):
    metadata = make(texts, tmp_path, lowercase=False)
    assert metadata["dropped_documents"] == {"duplicate": 15}


def test_copies_of_a_single_document(make, tmp_path):
    text = " ".join(built_in_files()[0].read_text("utf-8").split()[:300])
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'text': text})}\n" * 50)
    metadata = make(f"{tmp_path}/a.jsonl", tmp_path / "store")
    assert metadata["dropped_documents"] == {"duplicate": 49}
    assert metadata["splits"]["train"]["documents"] == 1
