"""Object storage: what of it differs from a disk, on a server of the tests' own."""

import gzip
import os
import subprocess
import sys
import time

import pytest
from etils import epath

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.workdir import read_json, write_json
from tests import runs


@pytest.mark.parametrize("path", ["s3://b/x", "hdfs://host/x", "file:///x", "gcs://b/x"])
def test_other_storage_is_refused(path):
    with pytest.raises(UserError, match=f"--output is {path}, but .*:// paths are not supported"):
        storage.open_path(path, "--output")


def test_a_path_without_a_bucket_is_refused():
    with pytest.raises(UserError, match="--workdir is gs:///run, which names no bucket"):
        storage.open_path("gs:///run", "--workdir")


def test_a_local_path_is_pathlibs(tmp_path):
    assert storage.open_path(str(tmp_path), "--workdir") == tmp_path


class TestBucketsOutOfReach:
    """Each ends in one sentence, soon, and nothing is tried in silence for minutes."""

    @pytest.fixture(autouse=True)
    def forgotten(self):
        storage._reach.cache_clear()
        yield
        storage._reach.cache_clear()

    def refusal(self, path):
        started = time.monotonic()
        with pytest.raises(UserError) as caught:
            storage.open_path(path, "--workdir")
        assert time.monotonic() - started < 20
        assert str(caught.value).startswith(f"--workdir is {path}, but ")
        return str(caught.value)

    def test_one_that_is_not_there(self, bucket):
        assert "there is no bucket gs://nobodys; create it" in self.refusal("gs://nobodys/run")

    def test_one_that_is_not_ours(self, bucket):
        said = self.refusal("gs://private/run")
        assert "HTTP 403" in said and "roles/storage.objectAdmin" in said

    def test_a_storage_that_is_down(self, bucket, gcs_server, monkeypatch):
        monkeypatch.setattr(gcs_server, "broken", 503)
        asked = len(gcs_server.requests)
        assert "answers HTTP 503" in self.refusal(f"gs://{bucket}/run")
        assert len(gcs_server.requests) - asked == 3

    def test_no_network(self, bucket, monkeypatch):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        assert "cannot be reached: [Errno 111] Conn" in self.refusal(f"gs://{bucket}/run")

    def test_no_credentials(self, bucket, monkeypatch, tmp_path):
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        # Not one of Google's machines.
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        said = self.refusal(f"gs://{bucket}/run")
        assert "no Google Cloud credentials were found" in said and "gcloud auth" in said

    def test_the_packages_are_missing(self, bucket, monkeypatch):
        storage._configure.cache_clear()
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        assert "pip install -e '.[gcs]'" in self.refusal(f"gs://{bucket}/run")
        assert not storage._configure.cache_info().currsize

    @pytest.mark.parametrize(
        "command",
        [
            ["bert_jax.main", "--config=configs/tiny.py", "--workdir=gs://nobodys/run"],
            ["bert_jax.prepare", "--input=gs://nobodys/*.txt", "--output=unused"],
            pytest.param(
                ["bert_jax.evaluate", "--workdir=gs://nobodys/run"], marks=pytest.mark.slow
            ),
            pytest.param(
                ["bert_jax.convert", "--input=gs://nobodys/x", "--to=google", "--output=unused"],
                marks=pytest.mark.slow,
            ),
        ],
        ids=lambda command: command[0],
    )
    def test_every_command_says_it_in_one_line(self, bucket, command):
        done = runs.run([sys.executable, "-m", *command])
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and "there is no bucket gs://nobodys" in done.stderr


def test_it_loads_no_tensorflow(bucket):
    code = (
        "import sys; from etils import epath; from bert_jax import storage\n"
        f"storage.write_whole('gs://{bucket}/a', b'1'); print(epath.Path('gs://{bucket}/a').exists())"
        "\nprint('tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_file_is_seen_as_others_have_left_it(bucket, gcs_server):
    path = epath.Path(f"gs://{bucket}/folder/x.json")
    assert not path.exists()
    # By another program, behind this process's back.
    gcs_server.put(bucket, "folder/x.json", b"[1]")
    assert path.exists() and path.parent.is_dir() and read_json(path) == [1]
    write_json(path, {"a": 2})
    assert gcs_server.data(bucket, "folder/x.json") == b'{\n  "a": 2\n}\n'
    assert gcs_server.names(bucket) == ["folder/x.json"], "no partial file is left"


def test_an_output_file_is_there_whole_or_not_at_all(bucket, gcs_server):
    # Beyond 5 MiB gcsfs sends several pieces.
    content = os.urandom(6 << 20)
    file = storage.OutputFile(f"gs://{bucket}/x")
    file.write(b"____" + content)
    file.seek(0)
    file.write(b"head")
    assert file.tell() == 4
    assert gcs_server.names(bucket) == []
    file.finish()
    assert gcs_server.data(bucket, "x") == b"head" + content
    given_up = storage.OutputFile(f"gs://{bucket}/y")
    given_up.write(b"1")
    given_up.close()
    assert gcs_server.names(bucket) == ["x"]


def test_lines_are_read_as_of_a_disk(bucket, gcs_server):
    text = b"".join(b"%d\n" % i for i in range(500_000))
    gcs_server.put(bucket, "x.gz", gzip.compress(text, 1))
    with storage.open_input(f"gs://{bucket}/x.gz") as raw, gzip.open(raw) as stream:
        assert stream.readline(100) == b"0\n"
        assert stream.read() == text[2:]


def test_globs_match_objects_with_their_sizes(bucket, gcs_server):
    for i, name in enumerate(["a/1.txt", "a/2.txt", "a/b/3.txt", "a/4.md"]):
        gcs_server.put(bucket, name, bytes(i))
    root = f"gs://{bucket}"
    found = storage.matching_files(f"{root}/a/*.txt")
    assert {str(path): size for path, size in found.items()} == {
        f"{root}/a/1.txt": 0,
        f"{root}/a/2.txt": 1,
    }
    deep = storage.matching_files(f"{root}/a/**/*.txt")
    assert f"{root}/a/b/3.txt" in map(str, deep)
    assert storage.matching_files(f"{root}/nothing*") == {}


def test_moving_takes_the_place_of_what_is_there(bucket, gcs_server):
    for name in ("new/a/1", "new/2", "old/3", "new-but-another/4"):
        gcs_server.put(bucket, name, name.encode())
    storage.move_directory(f"gs://{bucket}/new", f"gs://{bucket}/old")
    assert gcs_server.names(bucket) == ["new-but-another/4", "old/2", "old/a/1"]
    assert gcs_server.data(bucket, "old/a/1") == b"new/a/1"


def test_a_checksum_is_the_same_here_and_there(bucket, tmp_path):
    (tmp_path / "x").write_bytes(b"some bytes")
    storage.upload(tmp_path / "x", f"gs://{bucket}/folder/x")
    listed = storage.list_files(f"gs://{bucket}/folder")
    assert listed == {"x": (10, storage.crc32c(tmp_path / "x"))}


def test_an_error_of_the_storage_is_told_from_others():
    import google.auth.exceptions
    from google.protobuf.message import DecodeError

    try:
        try:
            raise google.auth.exceptions.RefreshError("gone")
        except Exception as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        assert storage.problem(error) == "gone"
    assert storage.problem(OSError("Forbidden: b/x\nno one")) == "Forbidden: b/x: no one"
    said = "Project was not passed and could not be determined from the environment."
    assert "set GOOGLE_CLOUD_PROJECT" in storage.problem(OSError(said))
    assert storage.problem(ValueError('NOT_FOUND: Error reading "gs://b/x"')).startswith(
        "NOT_FOUND"
    )
    assert storage.problem(DecodeError("Error parsing message")) == ""
    assert storage.problem(OSError(28, "No space left on device")) == ""
    assert storage.problem(ValueError("a bug")) == ""
