"""The token stores that `prepare` writes."""

import io
import itertools
import os
import sys

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.base import processes
from bert_jax.base.errors import UserError
from bert_jax.store import part_stages, tokenization
from bert_jax.store.heldout import HeldOut
from bert_jax.store.manifest import say_skipped
from bert_jax.store.preparation import tokenize_corpus
from bert_jax.store.token_store import TokenStore
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.corpus import Document
from bert_jax.text.sentences import split_sentences
from bert_jax.text.sources import built_in_files
from tests import runs
from tests.stores import VOCAB_SIZE, digest, make, options, write_speeches


def decode_all(split, tokenizer):
    bounds = itertools.pairwise(split.part(0).sentence_starts)
    return [tokenizer.decode(split.tokens_at(np.arange(a, b))) for a, b in bounds]


def test_written_files_and_metadata(store):
    metadata, output = store
    splits = {name: TokenStore(output / name) for name in ("train", "heldout")}
    assert sorted(os.listdir(output)) == ["heldout", "metadata.json", "tokenizer", "train"]
    for name, split in splits.items():
        counts = metadata["splits"][name]
        assert counts["documents"] == split.num_documents
        assert counts["sentences"] == split.num_sentences
        assert counts["tokens"] == split.num_tokens == split.token_counts.sum()
    assert splits["train"].num_documents + splits["heldout"].num_documents == 60
    assert splits["heldout"].num_documents in (2, 3)
    tokenizer = tokenizers.load(output / "tokenizer")
    assert metadata["tokenizer"]["fingerprint"] == tokenizer.fingerprint
    assert metadata["vocab_size"] == tokenizer.vocab_size == VOCAB_SIZE
    assert len(metadata["sources"]) == 60
    sentences = decode_all(splits["train"], tokenizer)
    assert "i embrace with great satisfaction the opportunity" in " ".join(sentences)


def test_tokens_are_those_of_the_documents_in_order(store):
    _, output = store
    tokenizer = tokenizers.load(output / "tokenizer")
    files = sorted(built_in_files()[:60], key=lambda path: path.name)
    texts = [" ".join(path.read_text("utf-8").split(" ")[:300]) for path in files]
    for name, wanted in (("train", False), ("heldout", True)):
        split = TokenStore(output / name)
        kept = [text for i, text in enumerate(texts) if (i in HeldOut(0.05)) == wanted]
        sentences = [s for text in kept for s in tokenizer.encode_batch(split_sentences(text))]
        np.testing.assert_array_equal(
            split.tokens_at(np.arange(split.num_tokens)), np.concatenate(sentences)
        )
        np.testing.assert_array_equal(
            np.diff(split.part(0).sentence_starts), [len(s) for s in sentences]
        )


def test_bytes_do_not_depend_on_the_number_of_processes(store, speeches, tmp_path, monkeypatch):
    # Small chunks finish in any order.
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 5000)
    made = make(options(speeches, num_processes=2), tmp_path / "store")
    before = digest(tmp_path / "store")
    assert before == digest(store[1])
    # A finished store is not written again.
    assert make(options(speeches, num_processes=3), tmp_path / "store") == made
    assert digest(tmp_path / "store") == before


def test_workers_import_neither_jax_nor_tensorflow(store):
    with processes.worker_processes(1) as pool:
        pool.submit(part_stages.run_part, str(store[1]), "count", 0).exception()
        modules = pool.submit(eval, "sorted(__import__('sys').modules)").result()
    assert "tokenizers" in modules
    assert not {"jax", "tensorflow", "pandas", "pytest"} & set(modules)


def test_at_most_two_long_documents_are_in_flight(store, monkeypatch):
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 20)
    text = "It is. " * 80
    read = 0

    def documents():
        nonlocal read
        for read in range(1, 11):
            yield Document("x", read, text, False)

    results = tokenization.tokenize_documents(documents(), store[1] / "tokenizer", 2)
    next(results)
    assert read == 2
    assert sum(1 for _ in results) == 9


def test_of_few_short_documents_two_are_held_out(tmp_path, capfd):
    metadata = make(options(write_speeches(tmp_path / "texts", 19)), tmp_path / "store")
    found = {name: split["documents"] for name, split in metadata["splits"].items()}
    assert found == {"train": 17, "heldout": 2} and "heldout" not in metadata["report"]
    assert "held out: 2 of the 19 documents (" in capfd.readouterr().out


@pytest.mark.parametrize("number, rows", [(1, "full_sentences"), (13, "pairs")])
def test_of_few_long_documents_the_ends_are_held_out(tmp_path, capfd, number, rows):
    """Like books: a fraction of 0.05 chooses at most one of them."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(number):
        text = "".join(f"Paragraph{n}. It goes on,\nand is wrapped.\n\n" for n in range(200))
        (folder / f"{i:02d}.txt").write_text(text)
    data = options(f"{folder}/*", rows=rows, format="documents")
    metadata = make(data, tmp_path / "a")
    data.num_processes = 2
    make(data, tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    train, heldout = metadata["splits"]["train"], metadata["splits"]["heldout"]
    assert train["documents"] == heldout["documents"] == number
    assert metadata["report"]["heldout"] == "ends"
    size = train["bytes_of_text"] + heldout["bytes_of_text"]
    assert size == sum(path.stat().st_size for path in folder.iterdir())
    assert heldout["bytes_of_text"] == pytest.approx(0.05 * size, rel=0.02)
    tokenizer = tokenizers.load(tmp_path / "a" / "tokenizer")
    split = decode_all(TokenStore(tmp_path / "a" / "heldout"), tokenizer)
    # An end begins with a paragraph.
    assert len(split) == 2 * 10 * number and split[0].replace(" ", "") == "paragraph190."
    assert "held out: the end of each document (about " in capfd.readouterr().out
    data.heldout_fraction = 0.0
    assert list(make(data, tmp_path / "c")["splits"]) == ["train"]


def test_vocabulary_is_not_trained_on_held_out_documents(tmp_path):
    index, other = (i for i in range(40) if i in HeldOut(0.05))
    (tmp_path / "texts").mkdir()
    for i in range(40):
        text = "zyx zyx ΩΩ. Wvu." if i in (index, other) else "It is. So it was."
        (tmp_path / "texts" / f"{i:02d}.txt").write_text(text)
    make(options(f"{tmp_path}/texts/*"), tmp_path / "store", 60)
    tokenizer = tokenizers.load(tmp_path / "store" / "tokenizer")
    tokens = {tokenizer.id_to_token(i) for i in range(60)}
    assert "it" in tokens
    assert not {"z", "ω", "##y"} & tokens


def test_given_vocabulary(store, speeches, tmp_path):
    vocab = str(store[1] / "tokenizer" / "vocab.txt")
    metadata = make(options(speeches, vocab=vocab), tmp_path / "store")
    assert metadata["tokenizer"] == store[0]["tokenizer"]
    assert metadata["splits"] == store[0]["splits"]
    with pytest.raises(UserError, match="model.vocab_size is 500, but .* has 400 tokens"):
        make(options(speeches, vocab=vocab), tmp_path / "other", 500)
    with pytest.raises(UserError, match="data.vocab: .*No such file or directory: 'nothing.txt'"):
        make(options(speeches, vocab="nothing.txt"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_sentencepiece(speeches, tmp_path):
    data = options(speeches, tokenizer="sentencepiece", sentencepiece_type="bpe")
    metadata = make(data, tmp_path / "a")
    assert metadata["tokenizer"]["kind"] == "sentencepiece"
    data.num_processes = 2
    make(data, tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_dropped_documents_do_not_change_the_held_out_ones(store, tmp_path, capsys):
    # Documents without tokens are only known after the vocabulary; they must keep their indices.
    texts = ["\\u200b" if i < 3 else f"It is {'so ' * i}." for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{t}"}}\n' for t in texts))
    vocab = str(store[1] / "tokenizer" / "vocab.txt")
    data = options(f"{tmp_path}/a.jsonl", vocab=vocab, heldout_fraction=0.25, bad_documents="skip")
    make(data, tmp_path / "store")
    tokenizer = tokenizers.load(tmp_path / "store" / "tokenizer")
    found = decode_all(TokenStore(tmp_path / "store" / "heldout"), tokenizer)
    metadata = make(data, tmp_path / "store")
    capsys.readouterr()
    say_skipped(metadata["dropped_documents"], metadata["first_dropped"])
    places = ", ".join(f"{tmp_path}/a.jsonl:{line}" for line in (1, 2, 3))
    assert capsys.readouterr().out == f"warning: skipped 3 documents: empty ({places})\n"
    wanted = [texts[i].lower() for i in range(3, 40) if i in HeldOut(0.25)]
    assert [s.replace(" ", "") for s in found] == [s.replace(" ", "") for s in wanted]


def test_tokenize_corpus(store, speeches, tmp_path):
    tokenizer = tokenizers.load(store[1] / "tokenizer")
    for _ in range(2):
        counts = tokenize_corpus(options(speeches), tokenizer, tmp_path / "x")
    split = TokenStore(tmp_path / "x")
    assert counts["documents"] == split.num_documents == 60
    assert counts["tokens"] == sum(s["tokens"] for s in store[0]["splits"].values())
    assert counts["dropped_documents"] == {}


def test_sample_is_bounded_even_and_repeatable():
    def draw():
        sample = DocumentSample(20_000)
        for i in range(1000):
            sample.offer(i, 100)
        return sample.chosen()

    chosen = draw()
    assert 100 <= len(chosen) <= 200
    assert chosen == sorted(chosen) == draw()
    in_quarters = np.histogram(chosen, 4, (0, 1000))[0]
    assert in_quarters.min() > 0.5 * in_quarters.max()


def run(*arguments):
    command = [sys.executable, "-m", "bert_jax.prepare", *arguments]
    return runs.run(command)


def test_text_on_standard_input(tmp_path, monkeypatch, capsys):
    text = "One fish. Two fish.\n\nRed fish here.\n" * 20
    (tmp_path / "a.txt").write_text(text)
    changes = {"rows": "segments", "heldout_fraction": 0.0, "language": "xx"}
    make(options(tmp_path / "a.txt", **changes), tmp_path / "file", 80)
    assert (
        "warning: there are no rules for splitting xx into sentences (data.language)"
        in capsys.readouterr().out
    )
    piped = options("-", **changes)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    metadata = make(piped, tmp_path / "piped", 80)
    assert make(piped, tmp_path / "piped", 80) == metadata
    assert digest(tmp_path / "piped" / "train") == digest(tmp_path / "file" / "train")
    assert sorted(os.listdir(tmp_path / "piped")) == ["metadata.json", "tokenizer", "train"]


def test_command(store, speeches, tmp_path):
    vocab = store[1] / "tokenizer" / "vocab.txt"
    report = ("--report", "--max_seq_length=32", "--rows=full_sentences")
    result = run(f"--input={speeches}", f"--output={tmp_path}/a", f"--vocab={vocab}", *report)
    assert result.returncode == 0, result.stderr
    assert "57" in result.stdout and "tokens/s" in result.stdout
    *_, last = result.stdout.splitlines()
    assert last.startswith("next: ") and f"--config.data.store={tmp_path}/a" in last
    # Only pairs have labels.
    assert "rows of 32" in result.stdout and "random pairs" not in result.stdout
    assert result.stderr == ""
    result = run(f"--output={tmp_path}/a", "--verify")
    assert "10 files of" in result.stdout and result.returncode == 0, result.stderr
