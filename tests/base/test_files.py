"""Files on a disk and in a bucket: atomic writes, and refusals in one sentence."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from tests import runs


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://b/x", "s3:// paths are not supported"),
        ("file:///x", "file:// paths are not supported"),
        ("gs://nobodys/run", "the bucket gs://nobodys cannot be listed"),
    ],
)
def test_paths_that_cannot_be_used(path, message, bucket):
    with pytest.raises(UserError, match=message):
        files.checked_path(path, "--output")


def test_a_bucket_without_access(monkeypatch):
    class Storage:
        def call(self, *_, **__):
            raise OSError("Forbidden: x\nno one may")

    monkeypatch.setattr(files, "filesystem", Storage)
    with pytest.raises(UserError, match="the bucket gs://x cannot be listed: Forbidden"):
        files.checked_path("gs://x/y", "--input")


def test_missing_credentials_give_one_sentence(tmp_path, bucket):
    environment = {k: v for k, v in runs.environment().items() if "STORAGE_EMULATOR" not in k}
    environment |= {"GOOGLE_APPLICATION_CREDENTIALS": "", "HOME": str(tmp_path)}
    environment |= {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": str(tmp_path)}
    command = [sys.executable, "-m", "bert_jax.convert", "--input=gs://b/x", "--output=y"]
    done = subprocess.run(
        [*command, "--to=bert_jax"], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("\n") == 1 and "default credentials were not found" in done.stderr
    assert "run `gcloud auth application-default login`" in done.stderr


def test_listings_are_not_cached_and_tensorflow_is_not_loaded(bucket):
    code = (
        "import sys; from etils import epath; from bert_jax.base import files\n"
        f"folder = epath.Path('gs://{bucket}/a')\n"
        "(folder / 'x').write_bytes(b'1'); print(folder.exists(), len(list(folder.iterdir())))\n"
        "files.remove_directory(folder); print(folder.exists(), 'tensorflow' in sys.modules)"
    )
    # In this new process, etils opens the bucket first.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "1", "False", "False"], done.stderr


@pytest.fixture(params=["disk", "bucket"])
def root(request, tmp_path):
    """Returns a directory on a disk, or one in a bucket."""
    if request.param == "disk":
        return epath.Path(tmp_path)
    return epath.Path(f"gs://{request.getfixturevalue('bucket')}/root")


def put(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_a_new_file_is_whole_or_absent(root):
    # gcsfs sends more than 5 MiB in several pieces.
    content = os.urandom(6 << 20)
    with files.new_file(root / "x") as stream:
        stream.write(b"____" + content)
        stream.seek(0)
        stream.write(b"head")
        assert not (root / "x").exists()
    assert (root / "x").read_bytes() == b"head" + content
    with pytest.raises(KeyError), files.new_file(root / "x") as stream:
        stream.write(b"half")
        raise KeyError
    assert (root / "x").read_bytes() == b"head" + content
    assert [path.name for path in root.iterdir()] == ["x"]


@pytest.mark.parametrize("name", ["x", "x.partial", "x.0a1b2c3d.partial"])
def test_a_planted_link_is_not_followed(tmp_path, monkeypatch, name):
    (tmp_path / "mine").write_text("months of work")
    (tmp_path / name).symlink_to(tmp_path / "mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "0a1b2c3d")
    with contextlib.suppress(FileExistsError):
        files.write_whole(tmp_path / "x", b"new")
    assert (tmp_path / "mine").read_text() == "months of work"


@pytest.mark.parametrize("content", ["", "{", "[]", "\ufffd", "[" * 10_000])
def test_other_content_than_a_json_object_is_refused(content, tmp_path):
    files.write_json(tmp_path / "x", {"a": [1, 2.5, None]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x", {"a": float("nan")})
    assert files.read_json(tmp_path / "x") == {"a": [1, 2.5, None]}
    (tmp_path / "x").write_text(content)
    with pytest.raises(UserError, match=f"{tmp_path}/x is "):
        files.read_json(tmp_path / "x")


def test_a_file_larger_than_any_config_is_refused(tmp_path):
    (tmp_path / "x").touch()
    os.truncate(tmp_path / "x", 2**40)
    with pytest.raises(UserError, match=f"^{tmp_path}/x is larger than 256 MiB$"):
        files.read_json(tmp_path / "x")


def test_memory_maps_of_a_local_copy_stay_valid(root):
    values = np.arange(1000)
    put(root, ["d/a/x"])
    (root / "d" / "v").write_bytes(values.tobytes())
    with files.local_copy(root / "d") as local:
        assert sorted(p.name for p in local.rglob("*")) == ["a", "v", "x"]
        mapped = np.memmap(local / "v", values.dtype, "r")
    assert np.array_equal(mapped, values)
    with files.local_copy(root / "d" / "v") as local:
        assert local.read_bytes() == values.tobytes()
    if files.is_remote(root):
        assert not local.exists()
        with files.local_copy(root / "d", ["v"]) as local:
            assert [path.name for path in local.iterdir()] == ["v"]


def test_output_is_uploaded_when_it_is_complete(bucket):
    root = epath.Path(f"gs://{bucket}/out")
    with files.local_output(root) as local:
        put(local, ["b", "d/c", "e"])
        assert not root.exists()
    assert sorted(files.list_files(root)) == ["b", "d/c", "e"]
    with pytest.raises(KeyError), files.local_output(root) as local:
        put(local, ["z"])
        raise KeyError
    assert not (root / "z").exists()


def test_moving_and_removing_a_directory(root):
    put(root, ["new/a/1", "new/2", "old/3", "new-but-another/4"])
    files.move(root / "new", root / "old")
    assert not (root / "new").exists() and not (root / "old" / "3").exists()
    assert (root / "old" / "a" / "1").read_text() == "new/a/1"
    for _ in range(2):
        files.remove_directory(root / "old")
        assert not (root / "old").exists()
    files.move(root / "new-but-another" / "4", root / "4")
    assert (root / "4").read_text() == "new-but-another/4"
    files.move(root / "4", root / "new-but-another" / "4")
    assert (root / "new-but-another" / "4").exists()


def test_storage_problem_recognizes_storage_errors():
    from google.auth.exceptions import RefreshError

    try:
        try:
            raise RefreshError("gone")
        except Exception as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        assert files.storage_problem(error) == "gone"
    assert files.storage_problem(OSError("Forbidden: b/x\nno one")) == "Forbidden: b/x: no one"
    assert files.storage_problem(ValueError('NOT_FOUND: Error reading "gs://b/x"'))
    assert files.storage_problem(OSError(28, "No space left on device")) == ""
    assert files.storage_problem(ValueError("a bug")) == ""
