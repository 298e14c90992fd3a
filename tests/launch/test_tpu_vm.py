"""launch/tpu_vm.sh and tpu_worker.sh: a run's life on TPU VMs that come and go."""

import io
import shlex
import subprocess
import tarfile
import time

import pytest

from tests.launch.fakes import LAUNCH, ROOT, Fakes, dry_run, launch, mistake

WHERE = ("--project=my-project", "--zone=us-central1-a")
IDENTITY = ("--name=bert", *WHERE)
TRAIN = (*IDENTITY, "--accelerator=v5litepod-256", "--workdir=gs://bucket/run")
MAIN = ("--", "--config=configs/large.py", "--config.data.input=it's my $x & \\text/*.txt")

LIST = [
    *("gcloud", "compute", "tpus", "queued-resources", "list", *WHERE),
    *("--filter=name~(^|/)bert$", "--format=value(state.state)"),
]
CREATE = [
    *("gcloud", "compute", "tpus", "queued-resources", "create", "bert", *WHERE),
    *("--accelerator-type=v5litepod-256", "--runtime-version=v2-alpha-tpuv5-lite"),
    "--node-id=bert",
]
DELETE = [
    *("gcloud", "compute", "tpus", "queued-resources", "delete", "bert", *WHERE),
    *("--force", "--quiet"),
]
UPLOAD = ["gcloud", "storage", "cp", "-", "gs://bucket/run/source.tar.gz"]
DESCRIBE = [
    *("gcloud", "compute", "tpus", "tpu-vm", "describe", "bert", *WHERE),
    "--format=value(state)",
]
SCRIPT = "bert_jax/source/launch/tpu_worker.sh"


def ssh(command, worker="all", node="bert"):
    return [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", node, *WHERE, "--quiet"),
        *(f"--worker={worker}", f"--command={command}"),
    ]


STATUS = ssh(f"if test -f {SCRIPT}; then bash {SCRIPT} status; else echo absent; fi", "0")
INSTALL = ssh(
    "rm -rf bert_jax/source && mkdir -p bert_jax/source && "
    "gcloud storage cat gs://bucket/run/source.tar.gz | "
    f"tar --extract --gzip --directory=bert_jax/source && bash {SCRIPT} install"
)
START = ssh(
    f"bash {SCRIPT} start gs://bucket/run --config=configs/large.py "
    "'--config.data.input=it'\\''s my $x & \\text/*.txt'"
)
STOP = ssh(f"bash {SCRIPT} stop")
BEGIN = [UPLOAD, INSTALL, START]


def test_a_dry_run_walks_through_a_runs_life():
    assert dry_run("tpu_vm.sh", "train", *TRAIN, *MAIN) == [
        *[LIST, CREATE, LIST, STATUS, *BEGIN],
        *[LIST, STATUS, DELETE],
    ]


def test_the_remote_shell_gets_the_flags_as_they_were_given():
    arguments = shlex.split(START[-1].removeprefix("--command="))
    assert arguments == ["bash", SCRIPT, "start", "gs://bucket/run", *MAIN[1:]]


@pytest.mark.parametrize(
    "accelerator, version",
    [
        ("v2-8", "tpu-ubuntu2204-base"),
        ("v3-128", "tpu-ubuntu2204-base"),
        ("v4-128", "tpu-ubuntu2204-base"),
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-1024", "v2-alpha-tpuv5"),
        ("v6e-256", "v2-alpha-tpuv6e"),
    ],
)
def test_every_generation_has_its_software(accelerator, version):
    arguments = (*TRAIN, f"--accelerator={accelerator}", "--spot", "--keep")
    commands = dry_run("tpu_vm.sh", "train", *arguments, *MAIN)
    assert commands[1] == [
        *CREATE[:-3],
        *(f"--accelerator-type={accelerator}", f"--runtime-version={version}"),
        *("--node-id=bert", "--spot"),
    ]
    assert DELETE not in commands, "--keep"


def test_several_slices():
    commands = dry_run("tpu_vm.sh", "train", *TRAIN, "--slices=2", *MAIN)
    assert commands[1] == [*CREATE[:-1], "--node-count=2", "--node-prefix=bert"]
    on = [command[5] for command in commands if command[3:5] == ["tpu-vm", "ssh"]]
    assert on == ["bert-0", "bert-0", "bert-1", "bert-0", "bert-1", "bert-0"]


def test_the_other_commands():
    assert dry_run("tpu_vm.sh", "status", *IDENTITY) == [LIST, STATUS]
    assert dry_run("tpu_vm.sh", "delete", *IDENTITY) == [STOP, DELETE]
    (logs,) = dry_run("tpu_vm.sh", "logs", *IDENTITY)
    assert logs == ssh("tail --lines=200 --follow=name bert_jax/log", "0")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("train", *TRAIN, "--accelerator=v5e-16", *MAIN), "--accelerator is 'v5e-16'; it must be"),
        (("train", *TRAIN, "--accelerator=v4", *MAIN), "and a size, such as v5litepod-256"),
        (("train", *IDENTITY, *MAIN), "--accelerator is missing: the TPU, such as v5litepod-256"),
        (("train", *TRAIN[:-1], *MAIN), "--workdir is missing: where the run is, gs://"),
        (("train", *TRAIN, "--workdir=runs/x", *MAIN), "--workdir is 'runs/x'; it must be a direc"),
        (("train", *TRAIN, "--workdir=gs://bucket", *MAIN), "--workdir is 'gs://bucket'; it must"),
        (("train", *TRAIN[1:], *MAIN), "--name is missing: what the TPU is to be called"),
        (("train", *TRAIN, "--zone=", *MAIN), "--zone is missing: where the TPU is"),
        (("train", *TRAIN, "--zone=us-central1", *MAIN), "--zone is 'us-central1'; it must be a z"),
        (("train", *TRAIN, "--project=", *MAIN), "--project is missing: the ID of the Google"),
        (("train", *TRAIN, "--name=Bert", *MAIN), "--name is 'Bert'; it must be at most 40 lower"),
        (("train", *TRAIN), "end with -- --config=configs/large.py"),
        (("train", *TRAIN, "--", "--config.seed=1"), "the flags of bert_jax.main are missing"),
        (("train", *TRAIN, *MAIN, "--workdir=gs://b/c"), "--workdir belongs before the --"),
        (("train", *TRAIN, "--acelerator=v4-8", *MAIN), "unknown flag --acelerator"),
        (("train", *TRAIN, "--spot=yes", *MAIN), "--spot is a switch: it takes no value"),
        (("train", *TRAIN, "--slices", *MAIN), "--slices needs a value: --slices=VALUE"),
        (("train", *TRAIN, "--slices=two", *MAIN), "--slices is 'two'; it must be a number"),
        (("train", *TRAIN, "now", *MAIN), "unexpected argument 'now': flags are written --name=v"),
        (("run", *TRAIN), "the first argument is 'run'; it must be train, status, logs or delete"),
        ((), "the first argument is ''; it must be train, status, logs or delete"),
    ],
)
def test_mistakes(arguments, words):
    assert words in mistake("tpu_vm.sh", *arguments)


@pytest.fixture
def cloud(tmp_path):
    """Google Cloud, where everything is answered beforehand."""
    fakes = Fakes(tmp_path)
    fakes.program("gcloud")
    return fakes


def train(cloud, *flags, **answers):
    cloud.answers(**answers)
    return launch("tpu_vm.sh", "train", *TRAIN, *flags, *MAIN, env=cloud.environment())


def test_the_real_commands_are_the_dry_runs(cloud):
    done = train(cloud, states=["", "ACTIVE", "ACTIVE"], statuses=["absent", "finished"])
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == dry_run("tpu_vm.sh", "train", *TRAIN, *MAIN)
    with tarfile.open(fileobj=io.BytesIO((cloud.directory / "archive").read_bytes())) as archive:
        names = archive.getnames()
    assert {"setup.py", "configs/large.py", "bert_jax/main.py", "launch/train.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]


def test_preemption(cloud):
    done = train(
        cloud,
        states=["", "WAITING_FOR_RESOURCES", "ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED", ""]
        + ["PROVISIONING", "ACTIVE", "ACTIVE", "ACTIVE"],
        statuses=["absent", "running", "absent", "running", "finished"],
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [
        *[LIST, CREATE, LIST, LIST, STATUS, *BEGIN, LIST, STATUS],
        *[LIST, LIST, DELETE],
        *[LIST, CREATE, LIST, LIST, STATUS, *BEGIN, LIST, STATUS],
        *[LIST, STATUS, DELETE],
    ]
    assert "preempted" in done.stderr and "finished: the results are in gs://bucket/run" in (
        done.stderr
    )


def test_a_node_that_is_preempted_before_its_resource_says_so(cloud):
    done = train(
        cloud,
        states=["ACTIVE", "ACTIVE", "", "ACTIVE", "ACTIVE"],
        statuses=["running", "!", "absent", "finished"],
        nodes=["PREEMPTED"],
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [
        *[LIST, STATUS, LIST, STATUS, DESCRIBE, DELETE],
        *[LIST, CREATE, LIST, STATUS, *BEGIN, LIST, STATUS, DELETE],
    ]


def test_a_stopped_or_lost_training_is_started_again_on_the_same_machines(cloud):
    done = train(
        cloud,
        states=["ACTIVE"] * 8,
        statuses=["stopped", "running", "stopped", "failed 134", "!", "running", "failed 75"]
        + ["finished"],
        nodes=["READY"],
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [
        # What is there may be an older version.
        *[LIST, STATUS, *BEGIN, LIST, STATUS],
        *[LIST, STATUS, START, LIST, STATUS, START],
        *[LIST, STATUS, DESCRIBE, LIST, STATUS],
        *[LIST, STATUS, START, LIST, STATUS, DELETE],
    ]


@pytest.mark.parametrize("before", ["finished", "failed 1"])
def test_what_an_earlier_command_left_does_not_count(cloud, before):
    done = train(cloud, "--keep", states=["ACTIVE"] * 2, statuses=[before, "finished"])
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [LIST, STATUS, *BEGIN, LIST, STATUS]


def refused(done):
    assert done.returncode == 1
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")][-1]


def test_a_mistake_ends_it_and_leaves_the_machines(cloud):
    told = refused(train(cloud, states=["ACTIVE"] * 2, statuses=["absent", "failed 2"]))
    assert "the training ended with a mistake" in told
    assert f"tpu_vm.sh logs {' '.join(IDENTITY)}" in told
    assert f"costs money: {LAUNCH}/tpu_vm.sh delete {' '.join(IDENTITY)}" in told
    assert cloud.calls() == [LIST, STATUS, *BEGIN, LIST, STATUS]


def test_a_request_that_cannot_be_met(cloud):
    told = refused(train(cloud, states=["", "FAILED"]))
    assert "Google Cloud cannot give this TPU" in told and "describe bert" in told
    assert cloud.calls() == [LIST, CREATE, LIST]


def test_what_someone_else_deleted_is_not_asked_for_again(cloud):
    told = refused(train(cloud, states=["", "ACTIVE", "DELETING", ""], statuses=["running"]))
    assert "the TPU was deleted by someone else" in told
    assert cloud.calls() == [LIST, CREATE, LIST, STATUS, LIST, LIST]


def test_one_that_failed_later_is_asked_for_again(cloud):
    done = train(
        cloud,
        states=["ACTIVE", "FAILED", "", "ACTIVE", "ACTIVE"],
        statuses=["running", "absent", "finished"],
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls()[2:5] == [LIST, DELETE, LIST] and cloud.calls()[5] == CREATE


def test_it_does_not_try_for_ever(cloud):
    answers = {"states": ["ACTIVE"] * 5, "statuses": ["running"] + ["!"] * 4}
    done = train(cloud, "--max_failures=3", nodes=["REPAIRING"] * 4, **answers)
    told = refused(done)
    assert "3 failures in a row, the last: worker 0 does not answer; the TPU is REPAIRING" in told
    assert len(cloud.calls()) == 2 + 3 * 3


@pytest.mark.parametrize(
    "failing, told",
    [
        ("create", "the TPU could not be asked for"),
        ("storage cp", "bert_jax could not be installed and started"),
        ("worker.sh install", "bert_jax could not be installed and started"),
        ("worker.sh start", "bert_jax could not be installed and started"),
        ("list", "gcloud does not answer"),
    ],
)
def test_what_fails_is_tried_again(cloud, failing, told):
    answers = {"states": [""] + ["ACTIVE"] * 4, "statuses": ["absent"] * 4}
    if failing == "create":
        answers["states"] = [""] * 4
    done = train(cloud, "--max_failures=3", failing=[failing], **answers)
    assert f"3 failures in a row, the last: {told}; the TPU is still there" in refused(done)


def test_a_tpu_that_cannot_be_deleted_at_the_end_is_told_of(cloud):
    answers = {"states": ["ACTIVE"] * 2, "statuses": ["absent", "finished"]}
    told = refused(train(cloud, failing=["delete"], **answers))
    assert "it could not be deleted; the TPU is still there and costs money" in told


def test_deleting_what_does_not_answer(cloud):
    cloud.program("gcloud", '#!/bin/sh\ncase $* in *ssh*) exit 255;; *) echo "$*";; esac\n')
    done = launch("tpu_vm.sh", "delete", *IDENTITY, env=cloud.environment())
    assert done.returncode == 0
    assert done.stdout.split() == DELETE[1:]
    assert "nothing could be stopped" in done.stderr


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
    """Runs tpu_worker.sh in a home of its own; returns what it prints."""
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
    """Waits until the training has begun so many times."""
    while (home / "bert_jax" / "log").read_text().count("training with ") < starts:
        time.sleep(0.01)


def test_a_worker(worker):
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
    # Returns at once, with its output let go: ssh would wait for it.
    assert run("start", *flags).returncode == 0
    until(run, "running")
    until_training(home, starts=1)
    first = (home / "bert_jax" / "pid").read_text()
    # The one before is stopped, and waited for.
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


# A cloud of one slice with two workers, which are directories; a preempted one is gone.
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

# Takes a step a second start, saved in the bucket; before the last it is preempted.
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
    """The real scripts on both sides; only gcloud and Python are small."""
    fakes = Fakes(tmp_path)
    fakes.program("gcloud", SMALL_CLOUD)
    fakes.program("python3", SMALL_TRAINING)
    fakes.program("sleep", "#!/bin/sh\nexec /bin/sleep 0.2\n")
    done = launch("tpu_vm.sh", "train", *TRAIN, *MAIN, env=fakes.environment())
    assert done.returncode == 0, done.stderr
    # Two workers, each started before and after the preemption.
    assert (tmp_path / "bucket").read_text() == "started\n" * 4
    assert done.stderr.count("asking for it again") == 1
    assert "# finished: the results are in gs://bucket/run" in done.stderr
    assert not list(tmp_path.glob("worker*")), "the TPU was left running"
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).stdout == b""
