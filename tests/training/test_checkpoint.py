"""Checkpoints: exact round trips, and detection of damage."""

import errno
import gc
import shutil
import sys
from contextlib import closing

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.checkpoint import Checkpointer
from tests.small import flat, random_batch, small_config

RESUME = {"stage": 1, "position": {"epoch": 2, "plan": [3, 4]}, "meter": {"count": 0.1}}


@pytest.fixture(scope="module")
def trainer():
    return make_trainer(small_config(**{"model.num_hidden_layers": 1}), jax.devices()[:1])


@pytest.fixture(scope="module")
def states(trainer):
    """Returns the states after 1, 2 and 3 steps, as host copies and on the device."""
    state, found = trainer.init_state(), {}
    for step in (1, 2, 3):
        state, _ = trainer.train_step(state, random_batch(step))
        found[step] = jax.tree.map(np.array, state)
    return found


def save(directory, states, steps=(1, 2), **options):
    checkpointer = Checkpointer(directory, **{"keep": 3, **options})
    for step in steps:
        checkpointer.save(step, states[step], RESUME | {"step": step})
    checkpointer.close()


@pytest.fixture(scope="module")
def saved(states, tmp_path_factory):
    """Returns a folder with checkpoints 1 and 2, which tests copy."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    save(folder, states)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def in_bucket(bucket, states):
    save(f"gs://{bucket}/run/checkpoints", states)
    return epath.Path(f"gs://{bucket}/run/checkpoints")


@pytest.fixture(params=["copy", "in_bucket"])
def anywhere(request):
    """Returns a folder with checkpoints 1 and 2, on a disk or in a bucket."""
    return epath.Path(request.getfixturevalue(request.param))


def assert_same(actual, expected):
    actual, expected = flat(actual), flat(expected)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype, name
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def listing(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def arrays_file(checkpoint):
    """Returns the file with the arrays of a checkpoint."""
    found = [file for pattern in ("d/*", "*/d/*") for file in (checkpoint / "state").glob(pattern)]
    return max(found, key=lambda file: file.stat().st_size)


def restore(folder, trainer, **kwargs):
    with closing(Checkpointer(folder, **kwargs)) as checkpointer:
        return checkpointer.restore_newest(trainer.abstract_state())


def test_round_trip_is_exact(anywhere, trainer, states):
    state, resume = restore(anywhere, trainer)
    assert_same(state, states[2])
    assert resume == RESUME | {"step": 2}
    assert int(state.step) == 2 and state.params["nsp"]["dense"]["kernel"].committed
    # The run continues as if it had not been interrupted.
    expected, actual = trainer.train_step(state, random_batch(3))[0], states[3]
    assert_same(expected, actual)
    save(anywhere, states, steps=(3,), keep=2)
    assert {path.name for path in anywhere.iterdir()} == {"2", "3"}


def test_parameters_of_other_shapes_are_refused(copy):
    other = small_config(**{"model.num_hidden_layers": 1, "model.intermediate_size": 48})
    other = make_trainer(other, jax.devices()[:1])
    message = r"Requested shape: .*48.* is not compatible with the stored shape: .*\); start"
    with pytest.raises(UserError, match=message):
        restore(copy, other)
    with (
        closing(Checkpointer(copy, read_only=True)) as reader,
        pytest.raises(UserError, match=message),
    ):
        reader.restore_params(other.abstract_state().params)


def test_training_during_a_save_does_not_change_the_checkpoint(tmp_path, trainer, states):
    """The state is donated to the next step during the save."""
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    state = trainer.init_state()
    for step in (1, 2, 3):
        state, _ = trainer.train_step(state, random_batch(step))
        checkpointer.save(step, state, {})
    for step in range(4, 8):
        state, _ = trainer.train_step(state, random_batch(step))
    checkpointer.wait()
    restored, _ = checkpointer.restore_newest(trainer.abstract_state())
    checkpointer.close()
    assert_same(restored, states[3])


def damage_truncate(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def damage_delete(file):
    file.unlink()


def test_other_folders_are_not_read_as_checkpoints(copy, trainer, states):
    (copy / "7").mkdir()
    (copy / "8").mkdir()
    (copy / "8" / "state").mkdir()
    (copy / "9.orbax-checkpoint-tmp").mkdir()
    (copy / "notes").mkdir()
    state, _ = restore(copy, trainer)
    assert_same(state, states[2])
    assert not (copy / "9.orbax-checkpoint-tmp").exists()


@pytest.mark.parametrize("damage", [damage_truncate, damage_delete])
def test_a_damaged_step_is_moved_aside_and_can_be_saved_again(damage, copy, trainer, states):
    damage(arrays_file(copy / "2"))
    state, resume = restore(copy, trainer)
    assert resume["step"] == 1
    assert_same(state, states[1])
    assert not (copy / "2").exists()
    assert (copy.parent / "damaged_checkpoints" / "2").exists()
    save(copy, states, steps=(2,))
    assert_same(restore(copy, trainer)[0], states[2])


def test_a_damaged_step_ends_all_reads_that_it_has_begun(copy, trainer, monkeypatch):
    """Otherwise, tensorstore prints a traceback for each, now or when the garbage is collected."""
    printed, before = [], gc.get_threshold()
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    damage_truncate(copy / "2" / "state" / "manifest.ocdbt")
    # The many objects of the test run would make each collection slow.
    gc.freeze()
    gc.set_threshold(10)
    try:
        for _ in range(5):
            assert restore(copy, trainer, read_only=True)[1]["step"] == 1
    finally:
        gc.set_threshold(*before)
        gc.collect()
        gc.unfreeze()
    assert not printed


def unreadable(file):
    """Makes a file that can be opened, but whose first byte cannot be read: EIO."""
    file.unlink()
    file.symlink_to("/proc/self/mem")


def test_an_error_of_the_disk_that_passes_is_no_damage(copy, trainer, states, monkeypatch):
    original, calls = ocp.CompositeCheckpointHandler.restore, []

    def fails_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return original(*args, **kwargs)

    monkeypatch.setattr(ocp.CompositeCheckpointHandler, "restore", fails_once)
    assert_same(restore(copy, trainer)[0], states[2])


def endless_link(file):
    file.unlink()
    file.symlink_to(file.name)


@pytest.mark.parametrize(
    ("file", "fail"),
    [
        ("resume/metadata", unreadable),
        ("state/_METADATA", unreadable),
        # tensorstore raises a ValueError with the status UNKNOWN.
        ("state/manifest.ocdbt", endless_link),
    ],
)
def test_an_error_of_the_disk_that_stays_is_no_damage(file, fail, copy, trainer):
    fail(copy / "2" / file)
    with pytest.raises(UserError, match=r"checkpoints/2 cannot be read: .*previous one$") as error:
        restore(copy, trainer)
    assert "\n" not in str(error.value)
    assert (copy / "2").exists() and not (copy.parent / "damaged_checkpoints").exists()


def test_only_damaged_checkpoints_give_an_error_and_stay(copy, trainer):
    for step in ("1", "2"):
        damage_truncate(copy / step / "state" / "_METADATA")
    before = listing(copy)
    # Tried twice: a second start must not find an empty folder and begin at step 0.
    for _ in range(2):
        with pytest.raises(UserError, match=r"none of the checkpoints in .* can be read") as error:
            restore(copy, trainer)
        assert "\n" not in str(error.value)
        assert listing(copy) == before


def test_a_killed_deletion(copy, trainer, states):
    """`keep` is 1: checkpoint 1 was being deleted when the process was killed."""
    shutil.rmtree(copy / "1" / "state")
    message = r"no complete checkpoint of step 1 \(.*state.*\); the other steps: 2"
    with (
        closing(Checkpointer(copy, read_only=True)) as reader,
        pytest.raises(UserError, match=message),
    ):
        reader.restore_params(trainer.abstract_state().params, step=1)
    assert_same(restore(copy, trainer, keep=1)[0], states[2])
    save(copy, states, steps=(3,), keep=1)
    assert [path.name for path in copy.iterdir()] == ["3"]


def test_read_only_changes_nothing(copy, trainer, states):
    damage_truncate(copy / "2" / "state" / "_METADATA")
    (copy / "9.orbax-checkpoint-tmp").mkdir()
    before = listing(copy.parent)
    state, _ = restore(copy, trainer, read_only=True)
    assert_same(state, states[1])
    assert listing(copy.parent) == before and (copy / "9.orbax-checkpoint-tmp").is_dir()


@pytest.mark.parametrize(
    ("options", "left"),
    [({"keep": 1}, [10]), ({"keep": 2, "keep_every_steps": 4}, [4, 8, 10])],
)
def test_keep_and_keep_every_steps(tmp_path, states, options, left):
    with closing(Checkpointer(tmp_path, **options)) as checkpointer:
        for step in (2, 4, 6, 8, 10):
            checkpointer.save(step, states[1], {})
        checkpointer.wait()
        assert checkpointer.steps() == left
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize("read_only", [False, True])
def test_killed_save_is_ignored(read_only, in_bucket, trainer):
    # orbax writes the marker last.
    (in_bucket / "2" / "commit_success.txt").unlink()
    before = files.list_files(in_bucket).keys()
    assert restore(in_bucket, trainer, read_only=read_only)[1]["step"] == 1
    assert (in_bucket / "2").exists() == read_only, "its pieces are removed"
    assert not read_only or files.list_files(in_bucket).keys() == before


def test_a_bucket_that_cannot_be_written_to(in_bucket, states, monkeypatch):
    checkpointer = Checkpointer(in_bucket, keep=3)

    def fail(*_, **__):
        raise OSError("Forbidden: run/checkpoints\nno one may")

    monkeypatch.setattr(checkpointer._manager, "save", fail)
    with pytest.raises(UserError, match="could not be written to gs://.*Forbidden"):
        checkpointer.save(3, jax.tree.map(lambda x: x, states[3]), RESUME)
