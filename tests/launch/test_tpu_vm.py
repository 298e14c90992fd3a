"""launch/tpu_vm.sh: a run on TPU VMs that are created, preempted and deleted."""

import io
import tarfile

import pytest

from tests.launch.fakes import LAUNCH, Fakes, dry_run, launch, mistake
from tests.launch.tpu import IDENTITY, MAIN, TRAIN, WHERE

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


def test_dry_run_prints_all_steps_of_a_run():
    assert dry_run("tpu_vm.sh", "train", *TRAIN, *MAIN) == [
        *[LIST, CREATE, LIST, STATUS, *BEGIN],
        *[LIST, STATUS, DELETE],
    ]


@pytest.mark.parametrize(
    "accelerator, version",
    [
        ("v4-128", "tpu-ubuntu2204-base"),
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
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
        (("train", *IDENTITY, *MAIN), "--accelerator is missing: the TPU, such as v5litepod-256"),
        (("train", *TRAIN, "--workdir=gs://bucket", *MAIN), "--workdir is 'gs://bucket'; it must"),
        (("train", *TRAIN[1:], *MAIN), "--name is missing: a name for the TPU"),
        (("train", *TRAIN, "--zone=us-central1", *MAIN), "--zone is 'us-central1'; it must be a z"),
        (("train", *TRAIN, "--name=Bert", *MAIN), "--name is 'Bert'; it must be at most 40 lower"),
        (("train", *TRAIN, *MAIN, "--workdir=gs://b/c"), "--workdir belongs before the --"),
        (("train", *TRAIN, "--acelerator=v4-8", *MAIN), "unknown flag --acelerator"),
        (("train", *TRAIN, "--spot=yes", *MAIN), "--spot is a switch: it takes no value"),
        (("train", *TRAIN, "--slices", *MAIN), "--slices needs a value: --slices=VALUE"),
        (("train", *TRAIN, "--slices=two", *MAIN), "--slices is 'two'; it must be a number"),
        (("train", *TRAIN, "now", *MAIN), "unexpected argument 'now': flags are written --name=v"),
        ((), "the first argument is ''; it must be one of: train status logs delete"),
    ],
)
def test_mistakes(arguments, words):
    assert words in mistake("tpu_vm.sh", *arguments)


@pytest.fixture
def cloud(tmp_path):
    """Returns a fake Google Cloud with prepared answers."""
    fakes = Fakes(tmp_path)
    fakes.program("gcloud")
    return fakes


def train(cloud, *flags, **answers):
    cloud.answers(**answers)
    return launch("tpu_vm.sh", "train", *TRAIN, *flags, *MAIN, env=cloud.environment())


def test_real_commands_match_the_dry_run(cloud):
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


def test_preempted_node_is_replaced_although_its_resource_is_active(cloud):
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


def test_stopped_training_restarts_on_the_same_machines(cloud):
    done = train(
        cloud,
        states=["ACTIVE"] * 8,
        statuses=["stopped", "running", "stopped", "failed 134", "!", "running", "failed 75"]
        + ["finished"],
        nodes=["READY"],
    )
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [
        # The machines may have an older version of the code.
        *[LIST, STATUS, *BEGIN, LIST, STATUS],
        *[LIST, STATUS, START, LIST, STATUS, START],
        *[LIST, STATUS, DESCRIBE, LIST, STATUS],
        *[LIST, STATUS, START, LIST, STATUS, DELETE],
    ]


@pytest.mark.parametrize("before", ["finished", "failed 1"])
def test_status_of_an_earlier_command_is_ignored(cloud, before):
    done = train(cloud, "--keep", states=["ACTIVE"] * 2, statuses=[before, "finished"])
    assert done.returncode == 0, done.stderr
    assert cloud.calls() == [LIST, STATUS, *BEGIN, LIST, STATUS]


def refused(done):
    assert done.returncode == 1
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")][-1]


def test_user_error_ends_the_script_and_keeps_the_machines(cloud):
    message = refused(train(cloud, states=["ACTIVE"] * 2, statuses=["absent", "failed 2"]))
    assert "the training ended with a mistake" in message
    assert f"tpu_vm.sh logs {' '.join(IDENTITY)}" in message
    assert f"costs money: {LAUNCH}/tpu_vm.sh delete {' '.join(IDENTITY)}" in message
    assert cloud.calls() == [LIST, STATUS, *BEGIN, LIST, STATUS]


def test_a_request_that_cannot_be_met(cloud):
    message = refused(train(cloud, states=["", "FAILED"]))
    assert "Google Cloud cannot provide this TPU" in message and "describe bert" in message
    assert cloud.calls() == [LIST, CREATE, LIST]


def test_resource_deleted_by_another_user_is_not_requested_again(cloud):
    message = refused(train(cloud, states=["", "ACTIVE", "DELETING", ""], statuses=["running"]))
    assert "the TPU was deleted by someone else" in message
    assert cloud.calls() == [LIST, CREATE, LIST, STATUS, LIST, LIST]


def test_number_of_retries_is_limited(cloud):
    answers = {"states": ["ACTIVE"] * 5, "statuses": ["running"] + ["!"] * 4}
    done = train(cloud, "--max_failures=3", nodes=["REPAIRING"] * 4, **answers)
    message = refused(done)
    assert (
        "3 failures in a row, the last: worker 0 does not answer; the TPU is REPAIRING" in message
    )
    assert len(cloud.calls()) == 2 + 3 * 3


@pytest.mark.parametrize(
    "failing, message",
    [
        ("create", "the TPU could not be requested"),
        ("storage cp", "bert_jax could not be installed and started"),
        ("list", "gcloud does not answer"),
    ],
)
def test_failed_calls_are_retried(cloud, failing, message):
    answers = {"states": [""] + ["ACTIVE"] * 4, "statuses": ["absent"] * 4}
    if failing == "create":
        answers["states"] = [""] * 4
    done = train(cloud, "--max_failures=3", failing=[failing], **answers)
    assert f"3 failures in a row, the last: {message}; the TPU is still there" in refused(done)


def test_a_tpu_that_cannot_be_deleted_at_the_end_is_reported(cloud):
    answers = {"states": ["ACTIVE"] * 2, "statuses": ["absent", "finished"]}
    message = refused(train(cloud, failing=["delete"], **answers))
    assert "the TPU could not be deleted; the TPU is still there and costs money" in message


def test_deleting_an_unresponsive_tpu(cloud):
    cloud.program("gcloud", '#!/bin/sh\ncase $* in *ssh*) exit 255;; *) echo "$*";; esac\n')
    done = launch("tpu_vm.sh", "delete", *IDENTITY, env=cloud.environment())
    assert done.returncode == 0
    assert done.stdout.split() == DELETE[1:]
    assert "nothing could be stopped" in done.stderr
