"""The scripts of launch/ pass shellcheck, and a dry run of each gives the expected commands."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.golden.inputs import read_json

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"
FLAGS = ["--config=configs/large.py", '--config.data.input=it\'s my $x & \\text/*.txt, "q"']


def dry_run(script, *arguments, **variables):
    """Returns the output of a dry run, for which none of the programs needs to be installed."""
    environment = {"PATH": os.defpath, "DRY_RUN": "1"} | variables
    command = [str(LAUNCH / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shellcheck_has_no_complaint(tmp_path):
    command = ["shellcheck", "--enable=quote-safe-variables"]
    scripts = [*LAUNCH.glob("*.sh"), ROOT / ".ci" / "run"]
    done = subprocess.run([*command, *scripts], capture_output=True, text=True)
    assert len(scripts) == 4 and done.returncode == 0, done.stdout
    (tmp_path / "wrong.sh").write_text("#!/bin/bash\nrm $1\n")
    wrong = subprocess.run([*command, str(tmp_path / "wrong.sh")], capture_output=True)
    assert wrong.returncode == 1, "shellcheck does not report a known mistake"


def test_tpu_vm():
    variables = {"RUN": "bert", "PROJECT": "p", "ZONE": "us-central1-a", "SPOT": "1", "SLICES": "2"}
    variables |= {"ACCELERATOR": "v5litepod-256", "WORKDIR": "gs://bucket/run"}
    output = dry_run("tpu_vm.sh", "train", *FLAGS, **variables)
    # Bash itself undoes the quoting, of which shlex does not know $'...'.
    script = 'for word in "$@"; do printf \'%s\\0\' "$word"; done'
    create, upload, *starts, delete = [
        subprocess.run(
            ["bash", "-c", f"set -- {line}\n{script}"], capture_output=True, text=True, check=True
        ).stdout.split("\0")[:-1]
        for line in output.splitlines()
    ]
    assert create == [
        *("gcloud", "compute", "tpus", "queued-resources", "create", "bert", "--project=p"),
        *("--zone=us-central1-a", "--node-count=2", "--node-prefix=bert"),
        *("--accelerator-type=v5litepod-256", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"),
    ]
    assert upload[-1].endswith("| gcloud storage cp - 'gs://bucket/run/source.tar.gz'")
    assert [start[5] for start in starts] == ["bert-0", "bert-1"]
    assert "--worker=all" in starts[0]
    # The workers get the flags as they were typed.
    remote = starts[0][-1].removeprefix("--command=").partition("\n")[0]
    done = subprocess.run(
        ["bash", "-c", f"{remote}\nprintf '%s\\0' \"${{arguments[@]}}\""],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\0")[:-1] == ["--workdir=gs://bucket/run", *FLAGS]
    assert delete[3:6] == ["queued-resources", "delete", "bert"] and "--force" in delete


def test_slurm():
    (line,) = dry_run("slurm.sh", "/shared/my run", *FLAGS[:1]).splitlines()
    train = ["python", "-m", "bert_jax.main", "--stopped_status=75", "--workdir=/shared/my run"]
    assert shlex.split(line) == ["srun", "--gpu-bind=none", *train, *FLAGS[:1]]


def test_gke():
    variables = {"RUN": "bert", "TPU": "v6e", "TOPOLOGY": "4x8", "SLICES": "2"}
    variables |= {"IMAGE": "docker.pkg.dev/p/r/bert_jax:1", "WORKDIR": "gs://bucket/run"}
    jobset = yaml.safe_load(dry_run("gke.sh", *FLAGS, **variables))
    golden = read_json("jobset_schema.json.gz")
    jsonschema.validate(jobset, golden, jsonschema.Draft202012Validator)
    (slices,) = jobset["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    assert (jobset["metadata"]["name"], slices["replicas"], job["parallelism"]) == ("bert", 2, 8)
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    (container,) = pod["containers"]
    assert container["args"] == ["--workdir=gs://bucket/run", *FLAGS]


@pytest.mark.parametrize("folder", ["gke", "dataflow"])
def test_files_of_the_images_exist(folder):
    lines = (LAUNCH / folder / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if re.match("COPY (?!--from)", line)]
    sources = {name for names in copied for name in names}
    assert sources == {"setup.py", "pyproject.toml", "README.md", "bert_jax", "configs"}
    ignored = (LAUNCH / folder / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*" and sources == {line[1:] for line in ignored if line[0] == "!"}
    assert all((ROOT / name).exists() for name in sources)
