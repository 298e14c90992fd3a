"""Checkpoints and metrics of a run in a bucket: as exact and as careful as on a disk."""

import json
import logging
import time
from pathlib import Path

import jax
import pytest

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.training import metrics
from bert_jax.training.checkpoint import CHECKSUMS, Checkpointer
from bert_jax.training.metrics import MetricsWriter, read_metrics
from bert_jax.training.trainer import Trainer
from tests.small import random_batch, small_config
from tests.training.test_checkpoint import LOGGER, RESUME, assert_same


@pytest.fixture(scope="module")
def trainer():
    return Trainer.from_config(small_config(scan_layers=True), jax.devices()[:1])


@pytest.fixture(scope="module")
def states(trainer):
    state, found = trainer.init_state(), {}
    for step in (1, 2, 3):
        state, _ = trainer.train_step(state, random_batch(step))
        found[step] = jax.tree.map(lambda x: jax.device_get(x).copy(), state)
    return found


def save(directory, states, steps=(1, 2), **options):
    checkpointer = Checkpointer(directory, **{"keep": 3, **options})
    for step in steps:
        checkpointer.save(step, states[step], RESUME | {"step": step})
    checkpointer.close()


def restored(directory, trainer, **options):
    checkpointer = Checkpointer(directory, keep=3, **options)
    state, resume = checkpointer.restore_newest(trainer.abstract_state())
    checkpointer.close()
    return state, resume


def copy_down(server, bucket, prefix, target):
    for name in server.names(bucket, prefix):
        path = target / name.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(server.data(bucket, name))


class TestCheckpoints:
    @pytest.fixture
    def saved(self, bucket, states):
        save(f"gs://{bucket}/run/checkpoints", states)
        return f"gs://{bucket}/run/checkpoints"

    def test_come_back_bit_for_bit(self, saved, trainer, states):
        state, resume = restored(saved, trainer)
        assert_same(state, states[2])
        assert resume == RESUME | {"step": 2}

    def test_only_the_newest_are_kept(self, saved, states, gcs_server, bucket):
        save(saved, states, steps=(3,), keep=2)
        steps = {name.split("/")[2] for name in gcs_server.names(bucket, "run/checkpoints/")}
        assert steps == {"2", "3"}

    def test_are_not_read_back_to_be_summed(self, bucket, states, gcs_server):
        asked = len(gcs_server.requests)
        save(f"gs://{bucket}/checkpoints", states, steps=(1,))
        read = sum(r.num_bytes for r in gcs_server.requests[asked:] if "/d/" in r.path)
        listed = json.loads(gcs_server.data(bucket, f"checkpoints/1/{CHECKSUMS}"))
        # orbax merges small pieces, and reads them for it; the arrays are not read.
        arrays = sum(size for name, (size, _) in listed.items() if "/d/" in name)
        assert read < 0.5 * arrays

    @pytest.mark.parametrize("damage", ["changed", "missing"])
    def test_a_damaged_one_is_moved_aside(
        self, damage, saved, trainer, states, gcs_server, bucket, caplog
    ):
        name = max(
            gcs_server.names(bucket, "run/checkpoints/2/state/ocdbt.process_0/d/"),
            key=lambda name: len(gcs_server.data(bucket, name)),
        )
        if damage == "changed":
            content = bytearray(gcs_server.data(bucket, name))
            content[len(content) // 2] ^= 1
            gcs_server.put(bucket, name, content)
        else:
            del gcs_server.buckets[bucket][name]
        with caplog.at_level(logging.WARNING, LOGGER):
            state, resume = restored(saved, trainer)
        assert resume["step"] == 1
        assert_same(state, states[1])
        assert "checkpoint" in caplog.text and "is damaged" in caplog.text
        assert not gcs_server.names(bucket, "run/checkpoints/2/")
        assert gcs_server.names(bucket, "run/damaged_checkpoints/2/")
        # Its step is saved again.
        save(saved, states, steps=(2,))
        assert restored(saved, trainer)[1]["step"] == 2

    def test_a_save_that_was_killed_is_not_taken(self, saved, trainer, gcs_server, bucket):
        # The marker is what orbax writes last.
        del gcs_server.buckets[bucket]["run/checkpoints/2/commit_success.txt"]
        assert restored(saved, trainer)[1]["step"] == 1
        assert not gcs_server.names(bucket, "run/checkpoints/2/"), "its pieces are removed"

    def test_reading_changes_nothing(self, saved, trainer, gcs_server, bucket):
        del gcs_server.buckets[bucket]["run/checkpoints/2/commit_success.txt"]
        before = dict(gcs_server.buckets[bucket])
        assert restored(saved, trainer, read_only=True)[1]["step"] == 1
        assert gcs_server.buckets[bucket] == before

    def test_copied_up_from_a_disk(self, bucket, trainer, states, tmp_path, gcs_server):
        save(tmp_path / "checkpoints", states)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        for path in files:
            name = path.relative_to(tmp_path).as_posix()
            gcs_server.put(bucket, name, path.read_bytes())
        state, resume = restored(f"gs://{bucket}/checkpoints", trainer)
        assert resume["step"] == 2
        assert_same(state, states[2])
        name = next(n for n in gcs_server.names(bucket, "checkpoints/2/state/d/"))
        gcs_server.put(bucket, name, gcs_server.data(bucket, name)[:-1] + b"x")
        assert restored(f"gs://{bucket}/checkpoints", trainer)[1]["step"] == 1

    def test_copied_down_to_a_disk(self, saved, bucket, trainer, states, gcs_server, tmp_path):
        copy_down(gcs_server, bucket, "run/checkpoints/", tmp_path)
        state, resume = restored(tmp_path, trainer)
        assert resume["step"] == 2
        assert_same(state, states[2])
        path = max((tmp_path / "2" / "state").rglob("*"), key=lambda p: p.stat().st_size)
        path.write_bytes(bytes(path.stat().st_size))
        assert restored(tmp_path, trainer)[1]["step"] == 1

    def test_a_bucket_that_may_not_be_written_to(self, saved, states, gcs_server, monkeypatch):
        checkpointer = Checkpointer(saved, keep=3)
        checkpointer.steps()
        monkeypatch.setattr(gcs_server, "broken", 403)
        with pytest.raises(UserError, match="could not be written to gs://.*out of order"):
            checkpointer.save(3, states[3], RESUME)
            checkpointer.wait()


class TestMetrics:
    def lines(self, server, bucket):
        return [json.loads(line) for line in server.data(bucket, "run/metrics.jsonl").splitlines()]

    def test_they_are_copied_at_a_flush_and_at_the_end(self, bucket, gcs_server):
        writer = MetricsWriter(f"gs://{bucket}/run", 0)
        writer.write(1, {"loss": 3.0})
        writer.flush()
        assert self.lines(gcs_server, bucket) == [{"step": 1, "loss": 3.0}]
        writer.write(2, {"loss": 2.0})
        assert len(self.lines(gcs_server, bucket)) == 1, "not yet: the last copy is new"
        writer.close()
        assert [line["step"] for line in self.lines(gcs_server, bucket)] == [1, 2]
        (events,) = gcs_server.names(bucket, "run/tensorboard/")
        assert b"train/loss" in gcs_server.data(bucket, events)
        assert read_metrics(f"gs://{bucket}/run") == self.lines(gcs_server, bucket)

    def test_they_are_copied_as_time_goes_by(self, bucket, gcs_server, monkeypatch):
        monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.05)
        writer = MetricsWriter(f"gs://{bucket}/run", 0)
        deadline = time.monotonic() + 20
        step = 0
        while len(self.lines(gcs_server, bucket)) < 3 and time.monotonic() < deadline:
            step += 1
            writer.write(step, {"loss": 1.0})
            time.sleep(0.02)
        assert len(self.lines(gcs_server, bucket)) >= 3, "without a flush"
        writer.close()

    def test_a_restart_goes_on_from_the_lines_of_its_checkpoint(self, bucket, gcs_server):
        for resumed, steps in ((0, (1, 2, 3)), (2, (3, 4))):
            writer = MetricsWriter(f"gs://{bucket}/run", resumed)
            for step in steps:
                writer.write(step, {"loss": float(10 * resumed + step)})
            writer.close()
        assert [line["loss"] for line in self.lines(gcs_server, bucket)] == [1.0, 2.0, 23.0, 24.0]

    def test_a_failed_copy_is_made_up_for(self, bucket, gcs_server, monkeypatch):
        monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.0)
        writer = MetricsWriter(f"gs://{bucket}/run", 0)
        # Not one that is tried again for long.
        monkeypatch.setattr(gcs_server, "broken", 403)
        writer.write(1, {"loss": 1.0})
        with pytest.raises(OSError) as caught:
            writer.flush()
        assert storage.problem(caught.value).startswith("Forbidden")
        monkeypatch.setattr(gcs_server, "broken", None)
        writer.close()
        assert [line["step"] for line in self.lines(gcs_server, bucket)] == [1]

    def test_the_scratch_copy_is_removed(self, bucket, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        writer = MetricsWriter(f"gs://{bucket}/run", 0)
        assert list(Path(tmp_path).iterdir())
        writer.close()
        assert not list(Path(tmp_path).iterdir())
