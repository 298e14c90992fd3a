"""metrics.jsonl, TensorBoard and the meter."""

import json
import struct
import time

import pytest
from etils import epath
from tensorboardX.proto.event_pb2 import Event

from bert_jax.base import files
from bert_jax.training import metrics
from bert_jax.training.metrics import RATES, Meter, MetricsWriter, read_metrics


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path):
    writer = MetricsWriter(tmp_path, resumed_step=0, evaluated_step=0)
    writer.write(1, {"loss": 1.0})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'
    writer.close()


def test_lines_after_the_resumed_step_are_removed(tmp_path):
    lines = [{"step": step, "loss": float(step)} for step in (10, 20, 20, 30, 40)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    MetricsWriter(tmp_path, resumed_step=20, evaluated_step=20).close()
    assert read_metrics(tmp_path) == lines[:3]
    MetricsWriter(tmp_path, resumed_step=0, evaluated_step=0).close()
    assert read_metrics(tmp_path) == []


def test_only_damaged_lines_are_lost(tmp_path):
    damaged = b'\xff\xfe\n{"loss": 3}\n[]\n3\n\n{"step": 2, "loss": 1.0}\n{"step": 3'
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 1.0}\n' + damaged)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    writer = MetricsWriter(tmp_path, resumed_step=5, evaluated_step=5)
    writer.write(6, {"loss": 6.0})
    writer.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 6]


def tensorboard_events(folder):
    """Reads TFRecords: length, its CRC, the event, its CRC."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            yield Event.FromString(content[at + 12 : at + 12 + length])
            at += length + 16


def test_tensorboard_gets_every_number(tmp_path):
    writer = MetricsWriter(tmp_path, resumed_step=0, evaluated_step=0)
    writer.write(7, {"loss": 1.5, "mfu": None})
    writer.write(9, {"eval_mlm_loss": 2.5})
    writer.close()
    found = {
        (value.tag, event.step): value.simple_value
        for event in tensorboard_events(tmp_path / "tensorboard")
        for value in event.summary.value
    }
    assert found == {("train/loss", 7): 1.5, ("eval/mlm_loss", 9): 2.5}


AVERAGED = ("loss", "grad_norm", "accuracy")


def values(number):
    return {name: number + i for i, name in enumerate(AVERAGED)}


def test_meter_averages(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    meter = Meter(AVERAGED)
    meter.add(values(1.0), sequences=8, tokens=80, flops=800)  # not timed: the clock is stopped
    assert meter.summary(None) == values(1.0) | dict.fromkeys(RATES)
    meter.since = clock[0]
    for number in (2.0, 6.0):
        clock[0] += 2
        meter.add(values(number), sequences=8, tokens=80, flops=800)
    clock[0] += 1000
    meter.since = clock[0]
    expected = {"sequences_per_second": 4.0, "tokens_per_second": 40.0}
    expected |= {"flops_per_second": 400.0, "mfu": 0.25}
    assert meter.summary(1600.0) == values(3.0) | expected
    assert meter.summary(None)["mfu"] is None
    meter.reset()
    assert meter.run_sequences_per_second() == 4.0
    clock[0] += 1
    meter.add(values(5.0), sequences=8, tokens=80, flops=800)
    assert meter.summary(None)["loss"] == 5.0
    assert meter.summary(None)["sequences_per_second"] == 8.0
    meter.reset()
    assert meter.run_sequences_per_second() == pytest.approx(24 / 5)


def test_meter_continues_exactly_from_its_state():
    """The state is stored as JSON; the line after a resume equals the uninterrupted one."""
    numbers = [0.1, 0.7, 1 / 3, 2e-7, 12345.678]
    full, first = Meter(AVERAGED), Meter(AVERAGED)
    for number in numbers:
        full.add(values(number), 1, 1, 1)
    for number in numbers[:2]:
        first.add(values(number), 1, 1, 1)
    second = Meter(AVERAGED, **json.loads(json.dumps(first.state())))
    for number in numbers[2:]:
        second.add(values(number), 1, 1, 1)
    assert second.summary(None) == full.summary(None)
    # The state is a copy, which later steps do not change.
    state = first.state()
    first.add(values(9.0), 1, 1, 1)
    assert state["count"] == 2 and state["sums"]["loss"] == pytest.approx(0.8)


class TestInABucket:
    def lines(self, root):
        return [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]

    def test_uploads(self, bucket, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        root = epath.Path(f"gs://{bucket}/run")
        writer = MetricsWriter(root, 0, 0)
        writer.write(1, {"loss": 3.0})
        writer.flush()
        assert self.lines(root) == [{"step": 1, "loss": 3.0}]
        writer.write(2, {"loss": 2.0})
        assert len(self.lines(root)) == 1, "the last upload is recent"
        monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.0)
        writer.write(3, {"loss": 1.0})
        assert [line["step"] for line in self.lines(root)] == [1, 2, 3]
        writer.write(4, {"loss": 1.0})
        writer.close()
        assert read_metrics(root) == self.lines(root) and len(self.lines(root)) == 4
        (events,) = (root / "tensorboard").iterdir()
        assert b"train/loss" in events.read_bytes()
        assert not list(tmp_path.iterdir()), "the scratch files are removed"
        MetricsWriter(root, resumed_step=2, evaluated_step=2).close()
        assert [line["step"] for line in self.lines(root)] == [1, 2]

    def test_next_upload_includes_lines_of_a_failed_one(self, bucket, monkeypatch):
        def fail(*_):
            raise OSError("Forbidden: x")

        root = epath.Path(f"gs://{bucket}/run")
        writer = MetricsWriter(root, 0, 0)
        monkeypatch.setattr(metrics, "UPLOAD_SECONDS", 0.0)
        with monkeypatch.context() as broken:
            broken.setattr(files, "write_whole", fail)
            writer.write(1, {"loss": 1.0})
            with pytest.raises(OSError, match="Forbidden"):
                writer.flush()
        writer.close()
        assert [line["step"] for line in self.lines(root)] == [1]
