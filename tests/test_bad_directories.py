"""Damaged, read-only, full and wrong directories give one clear sentence and lose no data."""

import shutil

import pytest

from bert_jax.commands.pretrain import pretrain
from bert_jax.training import start
from tests import runs
from tests.refusals import one_sentence
from tests.small_run import small_run, write_documents


def test_a_name_that_orbax_reads_as_a_pattern(texts, tmp_path, refusal):
    sentence = refusal(lambda: pretrain(small_run(texts), tmp_path / "a [red]"))
    assert sentence.endswith("a [red] has one of the characters * ? [ in it; choose another name")
    assert not (tmp_path / "a [red]").exists()


@pytest.mark.parametrize("name", ["results.json", "checkpoints", "tokenizer"])
def test_links_in_a_work_directory_are_not_followed(name, texts, tmp_path, refusal):
    directory, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    directory.mkdir()
    elsewhere.mkdir()
    (directory / name).symlink_to(elsewhere)
    sentence = refusal(lambda: pretrain(small_run(texts), directory))
    assert sentence.startswith(f"{directory / name} is a symbolic link")
    assert not any(elsewhere.iterdir())


def test_a_failed_save_ends_the_process(texts, tmp_path):
    """Threads of orbax wait 20 minutes for the directory of the checkpoint."""
    directory = tmp_path / "run"
    process = runs.start(runs.main_command(directory, data__input=texts, train__num_steps=10**6))
    runs.wait_for(lambda: runs.newest_checkpoint(directory) >= 8, process)
    (directory / "checkpoints").rename(tmp_path / "moved")
    (directory / "checkpoints").touch()
    try:
        _, stderr = process.communicate(30)
    finally:
        process.kill()
    sentence = one_sentence(process.returncode, stderr)
    assert f"could not be written to {directory}/checkpoints: " in sentence


class TestOthersDirectories:
    """Missing, damaged and wrong files in the directory of a finished run."""

    @pytest.fixture
    def copy(self, finished, tmp_path):
        shutil.copytree(finished, tmp_path / "run")
        return tmp_path / "run"

    def test_a_directory_in_use_is_refused(self, copy, texts, refusal):
        with start.lock(copy):
            sentence = refusal(lambda: pretrain(small_run(texts), copy))
        assert sentence == f"another process is training in {copy}"
        assert pretrain(small_run(texts), copy)["step"] == 6

    def test_other_text_is_refused_before_it_is_prepared(self, copy, tmp_path, refusal):
        shutil.rmtree(copy / "data")
        other = small_run(write_documents(tmp_path / "other", 5))
        assert "was made from other texts" in refusal(lambda: pretrain(other, copy))
        assert not (copy / "data").exists()

    @pytest.mark.parametrize("name", ["data", "tokenizer", "token_counts.npy"])
    def test_missing_files_are_regenerated(self, name, copy, finished, texts, tmp_path):
        path = copy / name
        # The texts may have moved.
        shutil.copytree(texts.rpartition("/")[0], tmp_path / "moved")
        texts = f"{tmp_path}/moved/*.txt"
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert pretrain(small_run(texts), copy)["step"] == 6
        for file in (finished / name).rglob("*") if path.is_dir() else ():
            if file.is_file() and file.name != "metadata.json":
                assert (copy / file.relative_to(finished)).read_bytes() == file.read_bytes()
