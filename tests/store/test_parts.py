"""Stores of several parts: the same bytes from any number of processes."""

import functools
import gzip
import json

import numpy as np
import pytest
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.store import engines, part_stages, plan, preparation
from bert_jax.store.engines import Cluster, LocalProcesses
from bert_jax.store.part import Part
from bert_jax.store.preparation import prepare
from bert_jax.store.token_store import TokenStore
from tests.stores import VOCAB_SIZE, digest, options, parts_of, write_speeches

SIZES = ("documents", "sentences", "tokens")


def in_order(function, numbers):
    """Runs the parts as the workers of a cluster do."""
    for number in numbers:
        function(number)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files of three formats, two of which are cut."""
    folder = tmp_path_factory.mktemp("corpus") / "texts"
    write_speeches(folder, 40)
    speeches = sorted(folder.iterdir())[:25]
    with (folder / "a.jsonl").open("w") as file:
        for number, path in enumerate(speeches):
            file.write(json.dumps({"text": f"Number {number}. {path.read_text()}"}) + "\n")
    (folder / "b.txt").write_text("It is one.\nIt is two, not one.\n\nIs it three?\nSo.\n\n" * 400)
    return f"{folder}/*"


def make(texts, output, engine=None, part_bytes=8000, vocab_size=VOCAB_SIZE, **changes):
    with parts_of(part_bytes):
        return prepare(options(texts, **changes), vocab_size, output, engine=engine)


@pytest.fixture(scope="module")
def store(texts, tmp_path_factory):
    output = tmp_path_factory.mktemp("stores") / "parts"
    return make(texts, output, LocalProcesses(2)), output


def arrays(directories):
    """Returns the tokens, and the lengths of sentences and documents, of splits joined."""
    splits = [Part(directory) for directory in directories]
    return [
        np.concatenate([s.tokens_at(np.arange(s.num_tokens)) for s in splits]),
        np.concatenate([np.diff(s.sentence_starts) for s in splits]),
        np.concatenate([np.diff(s.document_starts) for s in splits]),
    ]


def check_equal_to_one_part(output, whole, splits=("train", "heldout")):
    for split in splits:
        stores = [TokenStore(directory / split) for directory in (output, whole)]
        begins = [store.sentence_starts_at(np.arange(store.num_tokens)) for store in stores]
        np.testing.assert_array_equal(*begins)
        np.testing.assert_array_equal(
            np.flatnonzero(begins[1]), Part(whole / split).sentence_starts[:-1]
        )
        entries = json.loads((output / split / "parts.json").read_text())["parts"]
        names = [entry["name"] for entry in entries]
        assert names == sorted(p.name for p in (output / split).iterdir() if p.is_dir())
        for ours, theirs in zip(
            arrays(output / split / name for name in names), arrays([whole / split]), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
        for entry in entries:
            part = Part(output / split / entry["name"])
            assert [entry[key] for key in SIZES] == [getattr(part, f"num_{key}") for key in SIZES]
        name = "token_counts.npy"
        np.testing.assert_array_equal(np.load(output / split / name), np.load(whole / split / name))


def test_the_parts_joined_are_the_store_of_one_part(store, texts, tmp_path):
    metadata, output = store
    one = make(texts, tmp_path / "one", part_bytes=2**27)
    found = sorted(path.name for path in output.iterdir())
    assert found == ["heldout", "metadata.json", "tokenizer", "train"]
    assert not (tmp_path / "one" / "train" / "parts.json").exists()
    assert (metadata["format_version"], one["format_version"]) == (2, 1)
    for key in ("options", "splits", "tokenizer", "sources", "report", "dropped_documents"):
        assert metadata[key] == one[key]
    check_equal_to_one_part(output, tmp_path / "one")
    assert len(list((output / "train").glob("0*"))) > 10


class Killed(BaseException):
    pass


def test_a_restart_does_only_what_is_missing(store, texts, tmp_path, monkeypatch):
    done = []

    def run_part(output, stage, number, *others):
        if len(done) in (2, 10, 45):
            done.append("killed")
            raise Killed
        part_stages.run_part(output, stage, number, *others)
        done.append((stage, number))

    monkeypatch.setattr(engines, "run_part", run_part)
    for _ in range(3):
        with pytest.raises(Killed):
            make(texts, tmp_path / "store", LocalProcesses(1))
        # What a killed process leaves.
        scratch = tmp_path / "store" / "unfinished" / "00001-0123abcd" / "train" / "00001"
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "tokens-00000.bin").write_bytes(b"half")
    make(texts, tmp_path / "store", LocalProcesses(1))
    work = [entry for entry in done if entry != "killed"]
    assert len(work) == len(set(work))
    assert digest(tmp_path / "store") == digest(store[1])
    # Other options replace what is unfinished.
    done[:] = []
    with pytest.raises(Killed):
        make(texts, tmp_path / "other", LocalProcesses(1), lowercase=False)
    make(texts, tmp_path / "other", LocalProcesses(1), part_bytes=2**20)
    assert sorted(p.name for p in (tmp_path / "other" / "train").glob("*.npy"))


def test_a_kill_before_any_file_is_written_changes_no_byte(tmp_path, monkeypatch):
    lines = [json.dumps({"text": f"It is {n}. So it is, and so on."}) + "\n" for n in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(lines + lines[::5]))
    write, left = files.write_whole, []

    def make_it(output):
        engine = LocalProcesses(1)
        make(f"{tmp_path}/a.jsonl", output, engine, 1500, 200, duplicates="exact")

    def killed(*arguments):
        if not left.pop():
            raise Killed
        write(*arguments)

    make_it(tmp_path / "whole")
    monkeypatch.setattr(files, "write_whole", killed)
    for number in range(100):
        left[:] = [False] + number * [True]
        output = tmp_path / str(number)
        try:
            make_it(output)
        except Killed:
            left[:] = 100 * [True]
            make_it(output)
            assert digest(output) == digest(tmp_path / "whole"), number
        else:
            break
    assert 20 < number < 99


def test_the_error_of_the_lowest_part_is_reported(texts, tmp_path):
    lines = [json.dumps({"text": f"It is {n}, and so on and on."}) for n in range(400)]
    lines[350] = lines[120] = "broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    make_it = functools.partial(make, f"{tmp_path}/a.jsonl", tmp_path / "store", part_bytes=1000)
    for engine in (LocalProcesses(2), Cluster(in_order)):
        with pytest.raises(UserError, match="a.jsonl:121: not a JSON object"):
            make_it(engine)
    metadata = make_it(LocalProcesses(1), bad_documents="skip")
    places = [f"{tmp_path}/a.jsonl:{line}" for line in (121, 351)]
    assert metadata["first_dropped"] == {"broken JSON": places}


def test_a_cluster_refuses_other_settings_or_texts_in_one_directory(texts, tmp_path):
    output = tmp_path / "deep" / "store"
    with pytest.raises(UserError, match="have ended, but .*store lacks part 0: all of them must"):
        make(texts, output, Cluster(lambda *_: None))
    with pytest.raises(UserError, match="an unfinished token store with other settings or texts"):
        make(texts, output, Cluster(in_order), vocab_size=300)
    with pytest.raises(UserError, match="holds deep, which is not part"):
        make(texts, tmp_path, Cluster(in_order))


@pytest.mark.parametrize(
    "damage, words, workers",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "b.jsonl.gz had .* bytes when", 1),
        (lambda path: None, "b.jsonl.gz is damaged", 2),
    ],
)
def test_damage_while_a_store_is_prepared(damage, words, workers, tmp_path, monkeypatch):
    """Nothing that is done is lost."""
    lines = [json.dumps({"text": f"It is {n}. So it is."}) + "\n" for n in range(300)]
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "abcd":
        (texts / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
    path = texts / "b.jsonl.gz"
    whole = path.read_bytes()
    if "damaged" in words:
        path.write_bytes(whole[:-9])
    plans = make_plan_then(damage, path, monkeypatch)
    with pytest.raises(UserError, match=words):
        make(texts, tmp_path / "store", LocalProcesses(workers), part_bytes=1)
    monkeypatch.undo()
    assert (tmp_path / "store" / "unfinished" / "count-00000.json").exists() and plans
    path.write_bytes(whole)
    assert make(texts, tmp_path / "store", LocalProcesses(1), part_bytes=1)
    assert len(list((tmp_path / "store" / "train").glob("0*"))) == 4


def make_plan_then(damage, path, monkeypatch):
    """Damages a file after it was listed; returns the calls so far."""
    plans = []

    def make_plan(*arguments):
        plans.append(plan.make_plan(*arguments))
        damage(path)
        return plans[-1]

    monkeypatch.setattr(preparation, "make_plan", make_plan)
    return plans


def test_parts_in_a_bucket(bucket, tmp_path):
    lines = [json.dumps({"text": f"It is {n}. So it is, and so on."}) + "\n" for n in range(90)]
    made = {}
    for root in (epath.Path(tmp_path), epath.Path(f"gs://{bucket}")):
        (root / "texts").mkdir(parents=True, exist_ok=True)
        (root / "texts" / "a.jsonl").write_text("".join(lines))
        engine = Cluster(in_order) if files.is_remote(root) else LocalProcesses(1)
        made[root] = make(f"{root}/texts/*", root / "store", engine, part_bytes=1500)
    disk, remote = made
    assert made[disk]["splits"] == made[remote]["splits"]
    written = {
        p.relative_to(tmp_path / "store").as_posix() for p in (tmp_path / "store").rglob("*.*")
    }
    assert written == set(files.list_files(remote / "store"))
    for name in written - {"metadata.json"}:
        assert (remote / "store" / name).read_bytes() == (disk / "store" / name).read_bytes(), name
