"""launch/tpu_worker.sh, alone and under tpu_vm.sh."""

import subprocess
import time

import pytest

from tests.launch.fakes import ROOT, Fakes, launch
from tests.launch.tpu import MAIN, TRAIN

# Python as tpu_worker.sh uses it on a TPU VM: pip, uv, and launch/train.py.
WORKER_PYTHON = r"""#!/usr/bin/env bash
echo "$*" >>"$HOME/called"
case $* in
  *" venv "*) mkdir -p "${!#}/bin" && ln -s "$0" "${!#}/bin/python" ;;
  launch/train.py*)
    trap stop=true TERM
    stop=false
    echo "training with $*"
    while [[ $stop == false && ! -e $HOME/end ]]; do /bin/sleep 0.02; done
    [[ $stop == false ]] || echo saved
    [[ $stop == false ]] || exit 75
    exit "$(<"$HOME/end")"
    ;;
esac
"""


@pytest.fixture
def worker(tmp_path):
    """Runs tpu_worker.sh in its own home directory; returns its output."""
    fakes = Fakes(tmp_path)
    fakes.program("python3", WORKER_PYTHON)
    fakes.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.05\n")
    home = tmp_path / "home"
    (home / "bert_jax").mkdir(parents=True)

    def run(*arguments):
        environment = fakes.environment(HOME=str(home))
        return launch("tpu_worker.sh", *arguments, env=environment)

    yield home, run
    run("stop")


def until(run, wanted):
    for _ in range(100):
        if (status := run("status").stdout.strip()) == wanted:
            return
    raise AssertionError(f"{status}, not {wanted}")


def until_training(home, starts):
    """Waits until the training has been started `starts` times."""
    while (home / "bert_jax" / "log").read_text().count("training with ") < starts:
        time.sleep(0.01)


def test_install_start_stop_and_status(worker):
    home, run = worker
    flags = ("gs://bucket/run", *MAIN[1:])
    until(run, "absent")
    assert run("install").returncode == 0
    env = home / "bert_jax" / "env"
    assert (home / "called").read_text().splitlines() == [
        "-m pip install --quiet --user uv",
        f"-m uv venv --quiet --clear --python=3.12 {env}",
        f"-m uv pip install --quiet --python={env}/bin/python --editable {ROOT}[tpu,gcs]",
    ]
    until(run, "stopped")
    # It returns at once and closes its output; otherwise ssh would wait for it.
    assert run("start", *flags).returncode == 0
    until(run, "running")
    until_training(home, starts=1)
    first = (home / "bert_jax" / "pid").read_text()
    # It stops the earlier training and waits for it.
    assert run("start", *flags).returncode == 0
    until(run, "running")
    assert (home / "bert_jax" / "pid").read_text() != first
    assert (home / "bert_jax" / "log").read_text().count("saved") == 1
    until_training(home, starts=2)
    assert run("stop").returncode == 0
    until(run, "stopped")
    (home / "end").write_text("0")
    assert run("start", *flags).returncode == 0
    until(run, "finished")
    (home / "end").write_text("2")
    assert run("start", *flags).returncode == 0
    until(run, "failed 2")
    line = f"training with launch/train.py {' '.join(flags)}"
    assert (home / "bert_jax" / "log").read_text().splitlines().count(line) == 4


# A cloud of one slice with two workers, which are directories; preemption removes them.
SMALL_CLOUD = r"""#!/usr/bin/env bash
case $* in
  "storage cp - "*) exec cat >"$FAKES/archive" ;;
  "storage cat "*) exec cat "$FAKES/archive" ;;
  *"queued-resources create"*) mkdir "$FAKES/worker0" "$FAKES/worker1" ;;
  *"queued-resources list"*)
    if [[ -d $FAKES/worker0 && -e $FAKES/preempt ]]; then
      rm "$FAKES/preempt"
      for worker in 0 1; do kill -KILL -- "-$(<"$FAKES/worker$worker/bert_jax/pid")"; done
      rm -r "$FAKES"/worker*
      touch "$FAKES/suspended"
    fi
    if [[ -e $FAKES/suspended ]]; then
      echo SUSPENDED
    elif [[ -d $FAKES/worker0 ]]; then
      echo ACTIVE
    fi
    ;;
  *"queued-resources delete"*) rm -rf "$FAKES/suspended" "$FAKES"/worker* ;;
  *"tpu-vm ssh"*)
    workers=0 command=${!#}
    [[ $* != *--worker=all* ]] || workers="0 1"
    for worker in $workers; do
      cd "$FAKES/worker$worker" && HOME=$PWD bash -c "${command#--command=}" </dev/null || exit
    done
    ;;
esac
"""

# Records each start in the bucket. The first two starts request a preemption and wait for it.
SMALL_TRAINING = r"""#!/usr/bin/env bash
case $* in
  *" venv "*) mkdir -p "${!#}/bin" && ln -s "$0" "${!#}/bin/python" ;;
  launch/train.py*)
    [[ $PWD == */bert_jax/source && -f launch/train.py && -f configs/large.py ]] || exit 2
    echo started >>"$FAKES/bucket"
    if (($(wc -l <"$FAKES/bucket") <= 2)); then
      touch "$FAKES/preempt"
      /bin/sleep 60
    fi
    ;;
esac
"""


def test_from_an_empty_project_to_the_end_through_a_preemption(tmp_path):
    """Runs the real scripts on both sides; only gcloud and Python are fakes."""
    fakes = Fakes(tmp_path)
    fakes.program("gcloud", SMALL_CLOUD)
    fakes.program("python3", SMALL_TRAINING)
    fakes.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.2\n")
    done = launch("tpu_vm.sh", "train", *TRAIN, *MAIN, env=fakes.environment())
    assert done.returncode == 0, done.stderr
    # Two workers, each started before and after the preemption.
    assert (tmp_path / "bucket").read_text() == "started\n" * 4
    assert done.stderr.count("requesting it again") == 1
    assert "# finished: the results are in gs://bucket/run" in done.stderr
    assert not list(tmp_path.glob("worker*")), "the TPU was left running"
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).stdout == b""
