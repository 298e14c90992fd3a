"""launch/slurm.sh and the batch script that it submits."""

import signal
import subprocess
import time

import pytest

from tests.launch.fakes import LAUNCH, Fakes, dry_run, launch, mistake

TRAIN = ("--name=bert", "--nodes=4", "--workdir=/shared/my run")
MAIN = ("--", "--config=configs/large.py", "--config.data.input=it's text/*.txt")


def test_commands():
    assert dry_run("slurm.sh", "train", *TRAIN, "--time=2-00:00:00", *MAIN) == [
        [
            *("sbatch", "--job-name=bert", "--output=bert.log", "--time=2-00:00:00"),
            *("--nodes=4", "--ntasks-per-node=8", "--gpus-per-node=8", "--cpus-per-task=8"),
            *(f"{LAUNCH}/slurm/train.sbatch", "python", f"{LAUNCH}/train.py"),
            *("/shared/my run", *MAIN[1:]),
        ]
    ]
    name = "--name=bert"
    assert dry_run("slurm.sh", "status", name) == [["squeue", "--me", name]]
    assert dry_run("slurm.sh", "delete", name) == [["scancel", "--me", name]]
    (logs,) = dry_run("slurm.sh", "logs", name)
    assert logs[0] == "tail" and logs[-1] == "bert.log"


def test_real_command_matches_the_dry_run(tmp_path):
    fakes = Fakes(tmp_path)
    fakes.program("sbatch")
    done = launch("slurm.sh", "train", *TRAIN, *MAIN, env=fakes.environment())
    assert done.returncode == 0, done.stderr
    assert fakes.calls() == dry_run("slurm.sh", "train", *TRAIN, *MAIN)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("train", *TRAIN, "--gpus_per_node=no", *MAIN), "--gpus_per_node is 'no'; it must be a"),
        (("train", *TRAIN, "--time=soon", *MAIN), "--time is 'soon'; it must be a Slurm time"),
        (("start", *TRAIN), "the first argument is 'start'; it must be one of: train status"),
    ],
)
def test_mistakes(arguments, words):
    assert words in mistake("slurm.sh", *arguments)


SRUN = r"""#!/usr/bin/env bash
printf '%s\0' srun "$@" >"$FAKES/calls/000"
touch "$FAKES/training"
while [[ $TRAINING == long ]]; do
  [[ ! -e $FAKES/cancelled ]] || exit 143
  /bin/sleep 0.05
done
exit "$TRAINING"
"""


@pytest.fixture
def job(tmp_path):
    fakes = Fakes(tmp_path)
    fakes.program("srun", SRUN)
    fakes.program("scontrol")
    return fakes


def run_job(job, **environment):
    """Runs the batch script as Slurm does: as a copy in another directory."""
    copy = job.directory / "slurm_script"
    copy.write_text((LAUNCH / "slurm" / "train.sbatch").read_text())
    return subprocess.Popen(
        ["bash", str(copy), "/x/train.py", "/shared/my run", "--a b"],
        env=job.environment(SLURM_JOB_ID="17", **environment),
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "training, restarts, again",
    [("0", "0", False), ("75", "3", True), ("137", "0", True), ("75", "100", False)]
    + [("1", "0", False), ("2", "0", False)],
)
def test_job_is_requeued_after_preemption_or_crash(job, training, restarts, again):
    status = run_job(job, TRAINING=training, SLURM_RESTART_COUNT=restarts).wait(timeout=30)
    assert status == int(training)
    step, *more = job.calls()
    assert step == ["srun", "--gpu-bind=none", "/x/train.py", "/shared/my run", "--a b"]
    assert more == ([["scontrol", "requeue", "17"]] if again else [])


def test_canceled_job_is_not_requeued(job):
    process = run_job(job, TRAINING="long")
    while not (job.directory / "training").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    (job.directory / "cancelled").touch()
    assert process.wait(timeout=30) == 143
    assert len(job.calls()) == 1
