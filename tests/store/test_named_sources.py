"""Stores of several named sources: parts, held-out text, languages and vocabularies."""

import resource
from pathlib import Path

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.config import validate_data
from bert_jax.store import manifest
from bert_jax.store.choices import vocabulary_weights
from bert_jax.store.heldout import HeldOut
from bert_jax.store.part import write_parts
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.texts import input_difference
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.named_sources import REPEAT_UNIT
from tests.stores import digest, make, options, parts_of

ENGLISH = (
    "The {} people of these states have {} just governments. They met Dr. Smith on day {}.\n\n"
)
GERMAN = "Am {}. Oktober kamen {} Leute bzw. ihre Kinder. Danach gingen alle {} wieder heim.\n\n"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Returns sources of 60 English and 12 German documents."""
    folder = tmp_path_factory.mktemp("texts")
    for name, text, number, length in (("en", ENGLISH, 60, 40), ("de", GERMAN, 12, 20)):
        (folder / name).mkdir()
        for n in range(number):
            lines = (text.format(n, n + i, (7 * i + n) % 31) for i in range(length))
            (folder / name / f"{n:02}.txt").write_text("".join(lines))
    return f"en={folder}/en/*.txt,de={folder}/de"


def made(texts, output, vocab_size=400, **changes):
    data = options("sotu", sources=(texts,), **changes)
    validate_data(data)
    make(data, output, vocab_size)
    return {split: TokenStore(output / split) for split in ("train", "heldout")}


@pytest.mark.parametrize("part_bytes", [2**27, 5000])
def test_each_source_has_parts_and_held_out_documents(texts, tmp_path, part_bytes):
    with parts_of(part_bytes):
        store = made(texts, tmp_path / "store", heldout_fraction=0.2)
    numbers = {"en": 60, "de": 12}
    for split, is_heldout in (("train", False), ("heldout", True)):
        views = store[split].by_source()
        assert list(views) == ["en", "de"]
        for name, view in views.items():
            chosen = [n for n in range(numbers[name]) if (n in HeldOut(0.2)) == is_heldout]
            assert view.num_documents == len(chosen)
            # A document names its number.
            tokens = view.tokens_at(np.arange(view.num_tokens))
            np.testing.assert_array_equal(np.bincount(tokens, minlength=400), view.token_counts)
        total = sum(view.token_counts for view in views.values())
        np.testing.assert_array_equal(total, store[split].token_counts)
    names = [store["train"].sources.count(name) for name in ("en", "de")]
    assert names == [1, 1] if part_bytes == 2**27 else min(names) > 1
    metadata = read_metadata(tmp_path / "store")
    assert [s["source"] for s in metadata["sources"]] == ["en"] * 60 + ["de"] * 12
    assert manifest.input_key(metadata) == "sources"
    # The same files, named otherwise, are other texts.
    data = options("sotu", sources=(texts.replace("de=", "nl="),))
    assert "bytes in de, is " in input_difference(metadata, data)


def test_a_folder_is_the_same_as_its_names(texts, tmp_path):
    folder = texts.partition("=")[2].partition("/en/")[0]
    names = f"de={folder}/de,en={folder}/en"
    for name, sources in (("folder", folder), ("names", names)):
        made(sources, tmp_path / name, sampling_exponent=0.7)
    found = [digest(tmp_path / name / "train") for name in ("folder", "names")]
    assert found[0] == found[1]
    metadata = read_metadata(tmp_path / "folder")
    for sources in (folder, names):
        assert input_difference(metadata, options("sotu", sources=(sources,))) == ""


def test_the_language_of_a_source_divides_its_text(texts, tmp_path):
    split = made(texts, tmp_path / "store")["train"].by_source()["de"]
    # "bzw." and "3." end no German sentence: two sentences a paragraph.
    assert split.num_sentences == 2 * 20 * split.num_documents


def test_files_of_a_small_source_alone_are_a_part(texts, tmp_path):
    name = texts.split(",")[1]
    store = made(name, tmp_path / "store")["train"]
    assert (store.sources, list(store.by_source())) == (["de"], ["de"])


def test_small_sources_count_more_in_a_vocabulary(tmp_path):
    """With the exponent 0, a source of a tenth of the text counts as much as the other."""
    rng = np.random.default_rng(3)
    for name, letters, number in (("en", "abcdefgh", 100), ("de", "stuvwxyz", 10)):
        words = ["".join(rng.choice(list(letters), 6)) for _ in range(300)]
        (tmp_path / name).mkdir()
        for n in range(number):
            (tmp_path / name / f"{n}.txt").write_text(" ".join(rng.choice(words, 400)) + ".")
    source, pieces = f"en={tmp_path}/en,de={tmp_path}/de", {}
    for exponent in (1.0, 0.0):
        output = tmp_path / str(exponent)
        made(source, output, 240, sampling_exponent=exponent)
        tokens = [
            token.removeprefix("##") for token in tokenizers.load(output / "tokenizer").tokens
        ]
        pieces[exponent] = sum(len(token) > 1 and set(token) <= set("stuvwxyz") for token in tokens)
    assert 3 * pieces[1.0] < pieces[0.0] == pytest.approx(100, abs=15)


def test_weights_of_a_vocabulary():
    data = options("sotu", sampling_exponent=0.0)
    weights = vocabulary_weights({"en": 900, "de": 100}, data)
    assert weights == {"en": REPEAT_UNIT, "de": pytest.approx(9 * REPEAT_UNIT, rel=1e-5)}


def test_a_sample_has_copies_of_documents_with_weight():
    weights = [REPEAT_UNIT, 5 * REPEAT_UNIT // 2]
    everything = DocumentSample(10**9)
    bounded = DocumentSample(2000 * 10)
    for index in range(2000):
        everything.offer(index, 10, weights[index % 2])
        bounded.offer(index, 10, weights[index % 2])
    for sample, fraction in ((everything, 1), (bounded, None)):
        copies = np.bincount(sample.chosen(), minlength=2000).reshape(-1, 2)
        fraction = fraction or copies[:, 0].mean()
        assert copies.max(axis=0).tolist() == [1, np.ceil(2.5 * fraction)]
        # Each number of copies is 0 or 1 more than the least; 4 standard deviations.
        assert abs(copies[:, 1].mean() - 2.5 * fraction) < 4 * np.sqrt(0.25 / 1000)
    assert len(bounded.chosen()) <= 2000 < len(everything.chosen())


def test_a_given_vocabulary_does_not_depend_on_the_exponent(texts, tmp_path):
    made(texts, tmp_path / "a", sampling_exponent=0.5)
    vocab = str(tmp_path / "a" / "tokenizer" / "vocab.txt")
    for name, exponent in (("b", 0.7), ("c", 1.0)):
        made(texts, tmp_path / name, vocab=vocab, sampling_exponent=exponent)
    assert digest(tmp_path / "b") == digest(tmp_path / "c")
    # A finished store is used with any exponent, unless its vocabulary was trained with another.
    made(texts, tmp_path / "b", vocab=vocab, sampling_exponent=0.1)
    with pytest.raises(UserError, match="made with data.sampling_exponent=0.5, not 0.1"):
        made(texts, tmp_path / "a", sampling_exponent=0.1)
    made(texts, tmp_path / "d", source_weights=("en=1,de=2",))
    with pytest.raises(UserError, match=r"made with data.source_weights=\['en=1,de=2'\], not \[\]"):
        made(texts, tmp_path / "d")


def test_a_source_without_text(texts, tmp_path):
    (tmp_path / "el.txt").write_text("")
    with pytest.raises(UserError, match="the source el has no document with text in it"):
        made(f"{texts},el={tmp_path}/el.txt", tmp_path / "store", bad_documents="skip")


def test_sources_of_few_documents_hold_out_their_ends(texts, tmp_path):
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(GERMAN.format(n, n, n) * 30)
    store = made(f"{texts},de-few={tmp_path}/*.txt", tmp_path / "store")
    sizes = {name: view.num_documents for name, view in store["heldout"].by_source().items()}
    assert sizes == {"en": 3, "de": sizes["de"], "de-few": 3}
    assert sizes["de"] > 1


def test_a_source_of_copies_of_another_is_refused(texts, tmp_path):
    copies = f"{texts},en-copies={tmp_path}"
    for path in Path(texts.removeprefix("en=").split("/*")[0]).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    message = r"no document of en-copies is left to train on: 0 held out, \d+ skipped \(duplicate\)"
    with pytest.raises(UserError, match=message):
        made(copies, tmp_path / "store", duplicates="exact")


def test_both_splits_of_many_sources_can_be_open(tmp_path):
    """Each of 100 sources has three parts in each split."""
    names = [f"{number:05d}" for number in range(300)]
    for split in ("train", "heldout"):
        counts = {}
        for name in names:
            with SplitWriter(tmp_path / split / name, 20) as writer:
                writer.append(np.arange(3), np.array([3]))
            counts[name] = writer.counts
        sources = [f"en-{int(name) // 3}" for name in names]
        write_parts(tmp_path / split, counts, sources, has_words=False)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        stores = [TokenStore(tmp_path / split) for split in ("train", "heldout")]
        for store in stores:
            tokens = store.tokens_at(np.arange(store.num_tokens))
            np.testing.assert_array_equal(tokens, [0, 1, 2] * 300)
    finally:
        del stores, store
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
