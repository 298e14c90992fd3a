"""Conversion of a file of texts to a file of features."""

import gzip
import json
import os
import threading
import tracemalloc

import numpy as np
import pytest
from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.inference import features as features_lib
from bert_jax.inference.bert import Bert
from bert_jax.inference.features import count_texts, write_features
from tests.interop.small_bert import make_pretrained

TEXTS = ["a b c", ("the a", "b"), "j " * 30, "d", ("a b c d e f", "g")]


@pytest.fixture(scope="module")
def bert():
    return Bert(make_pretrained(num_hidden_layers=1))


def write_texts(path, texts):
    lines = [
        {"text": t} if isinstance(t, str) else dict(zip(("text", "text_b"), t, strict=True))
        for t in texts
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def source(tmp_path):
    return write_texts(tmp_path / "texts.jsonl", TEXTS)


def write(bert, source, output, layers=(-1,), pooling="cls", max_length=None, stride=None):
    embedding = bert.embedding_with(pooling, None, max_length, stride)
    return write_features(bert, source, output, layers=layers, embedding=embedding)


def read_npz(path):
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("layers", "pooling"),
    [
        pytest.param((-1,), "cls", marks=pytest.mark.slow),
        ((0, -1), "mean"),
        pytest.param((0, -1), "tokens", marks=pytest.mark.slow),
    ],
)
def test_files_contain_the_results_of_encode(bert, source, tmp_path, monkeypatch, layers, pooling):
    # Two and a half windows.
    monkeypatch.setattr(features_lib, "_WINDOW_TEXTS", 2)
    wanted = bert.encode(TEXTS, pooling=pooling, layers=layers[0] if len(layers) == 1 else layers)
    for name in ("f.npz", "f.jsonl"):
        assert write(bert, source, tmp_path / name, layers=layers, pooling=pooling) == 5
    arrays = read_npz(tmp_path / "f.npz")
    lines = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert arrays["features"].dtype == np.float32
    if pooling == "tokens":
        assert arrays.keys() == {"features", "input_ids", "offsets"}
        assert (arrays["input_ids"].dtype, arrays["offsets"].dtype) == (np.int32, np.int64)
        found = np.split(arrays["features"], arrays["offsets"][1:-1])
        rows = [row.input_ids_L for row in bert.rows(TEXTS)]
        np.testing.assert_array_equal(arrays["input_ids"], np.concatenate(rows))
        for line, row in zip(lines, rows, strict=True):
            assert line["tokens"] == [bert.tokenizer.id_to_token(i) for i in row]
    else:
        assert arrays.keys() == {"features"}
        found = arrays["features"]
    for line, x, expected in zip(lines, found, wanted, strict=True):
        np.testing.assert_allclose(x, expected, atol=1e-5)
        # JSON lines have six decimals.
        np.testing.assert_allclose(line["features"], x, atol=6e-7)
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "f.npz", "f.jsonl"}


def test_blank_lines_and_null_are_ignored(bert, tmp_path):
    source = tmp_path / "texts.jsonl"
    source.write_bytes(b'\xef\xbb\xbf{"text": "a", "text_b": null, "id": 7}\r\n\n  \n{"text": "b"}')
    write(bert, source, tmp_path / "f.npz")
    np.testing.assert_allclose(
        read_npz(tmp_path / "f.npz")["features"],
        bert.encode(["a", "b"], pooling="cls"),
        atol=1e-5,
    )


def test_windows_with_a_stride_and_blank_texts_which_are_cls_sep(bert, tmp_path, recwarn):
    texts = ["a b c d e f g h i j", "", " ", "\0", "c"]
    source = write_texts(tmp_path / "texts.jsonl", texts)
    options = {"pooling": "mean", "stride": 3, "max_length": 9}
    assert write(bert, source, tmp_path / "f.npz", **options) == 5
    assert not recwarn.list
    features_NxD = read_npz(tmp_path / "f.npz")["features"]
    np.testing.assert_allclose(features_NxD, bert.encode(texts, **options), atol=1e-5)
    (row,) = bert.rows(["a"])
    cls_sep = row._replace(input_ids_L=row.input_ids_L[[0, -1]], num_first=2)
    embedding = bert.embedding_with("mean", None, None)
    (expected_1xD,) = bert.features([cls_sep], bert.layers([-1]), embedding)
    for i in (1, 2, 3):
        np.testing.assert_allclose(features_NxD[i], expected_1xD[0], atol=1e-5)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_text_file_has_a_text_on_each_line(bert, tmp_path, suffix):
    source = tmp_path / f"texts.txt{suffix}"
    content = "\ufeffa b\r\n\n{c}\nd".encode()
    source.write_bytes(gzip.compress(content) if suffix else content)
    assert count_texts(bert, source) == 4
    assert write(bert, source, tmp_path / "f.npz") == 4
    expected = bert.encode(["a b", "", "{c}", "d"], pooling="cls")
    np.testing.assert_allclose(read_npz(tmp_path / "f.npz")["features"], expected, atol=1e-5)
    if not suffix:
        source.write_bytes(b"a\n\xff\n")
        with pytest.raises(UserError, match=f"{source}:2: not valid UTF-8"):
            count_texts(bert, source)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "a"', "not a JSON object"),
        (b'{"body": "a", "id": 1}', "it has no field `text`; its fields: body, id"),
        (b'{"text": 1}', "`text` is 1; it must be a string"),
        (b'{"text": "a", "text_b": ["b"]}', "`text_b` is .'b'.; it must be a string"),
    ],
)
def test_bad_line_is_named_and_the_old_output_is_kept(bert, tmp_path, line, words):
    source = tmp_path / "texts.jsonl"
    source.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    output = tmp_path / "f.npz"
    output.write_bytes(b"as it was")
    with pytest.raises(UserError, match=f"{source}:3 .*{words}|{source}:3: .*{words}"):
        write(bert, source, output)
    assert output.read_bytes() == b"as it was"
    assert {path.name for path in tmp_path.iterdir()} == {"texts.jsonl", "f.npz"}


@pytest.mark.parametrize(
    ("source_name", "output_name", "words"),
    [
        ("nothing.jsonl", "f.npz", "No such file or directory"),
        ("texts.jsonl", "f.csv", "FILE.npz or FILE.jsonl"),
        ("texts.jsonl", "folder.npz", "FILE.npz or FILE.jsonl"),
        ("texts.jsonl", "linked.npz", "the file of --input, which would be overwritten"),
        ("texts.jsonl", "s3://bucket/f.npz", "s3:// paths are not supported"),
    ],
)
def test_unusable_paths_are_refused(bert, source, tmp_path, source_name, output_name, words):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "linked.npz").symlink_to("texts.jsonl")
    before = source.read_bytes()
    output = output_name if "://" in output_name else tmp_path / output_name
    with pytest.raises((UserError, FileNotFoundError), match=words):
        write(bert, tmp_path / source_name, output)
    assert not list(tmp_path.glob("f.*")) and source.read_bytes() == before


def test_a_pipe_is_read_once(bert, source, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert count_texts(bert, pipe) is None
    for content in (b"\n", source.read_bytes()):
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        if content == b"\n":
            with pytest.raises(UserError, match="pipe has no example"):
                write(bert, pipe, tmp_path / "pipe.npz")
            assert not (tmp_path / "pipe.npz").exists()
        else:
            write(bert, pipe, tmp_path / "pipe.npz")
        writer.join()
    write(bert, source, tmp_path / "file.npz")
    assert (tmp_path / "pipe.npz").read_bytes() == (tmp_path / "file.npz").read_bytes()


def test_count_texts_checks_every_line(bert, source, tmp_path):
    assert count_texts(bert, source) == len(TEXTS)
    with source.open("a") as file:
        file.write("\n{}\n")
    with pytest.raises(UserError, match=f"{source}:7: it has no field `text`"):
        count_texts(bert, source)
    with pytest.raises(UserError, match=f"{source}:2: a test has a single token type"):
        count_texts(Bert(make_pretrained(type_vocab_size=1)), source)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(features_lib, "_WINDOW_BYTES", 2**16)
    peaks = []
    # The first run compiles a program for every shape of the later ones.
    for count in (2_000, 500, 2_000):
        source = write_texts(tmp_path / "texts.jsonl", ["a b c d e f g h"] * count)
        tracemalloc.start()
        write(bert, source, tmp_path / "f.jsonl", pooling="tokens")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1] < 2**22


def test_input_and_output_in_a_bucket(bert, source, tmp_path, bucket):
    remote = epath.Path(f"gs://{bucket}/texts.jsonl")
    remote.write_bytes(source.read_bytes())
    write(bert, remote, f"gs://{bucket}/f.npz")
    write(bert, source, tmp_path / "f.npz")
    written = epath.Path(f"gs://{bucket}/f.npz").read_bytes()
    assert written == (tmp_path / "f.npz").read_bytes()


def test_features_of_a_bart_are_its_encoders():
    bart, other = make_pretrained(family="bart"), make_pretrained(family="bart")
    for name in other.weights:
        if name.startswith("bert/decoder/"):
            other.weights[name] = other.weights[name] + 1
    one, two = (Bert(model).encode("the cab", pooling="tokens") for model in (bart, other))
    np.testing.assert_array_equal(one, two)
