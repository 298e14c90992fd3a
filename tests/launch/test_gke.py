"""launch/gke.sh, and the JobSet that it submits to the cluster."""

import gzip
import json

import jsonschema
import pytest
import yaml

from tests.golden import record_jobset_schema
from tests.launch.fakes import LAUNCH, ROOT, Fakes, dry_run, launch, mistake

WHERE = ("--name=bert", "--project=my-project", "--zone=us-east5-a")
TPU = ("--tpu=v6e", "--topology=4x8")
TRAIN = (*WHERE, *TPU, "--image=us-docker.pkg.dev/p/r/bert_jax:1", "--workdir=gs://bucket/run")
MAIN = ("--", "--config=configs/large.py", r"--config.data.input=it's my $x & \text/*.txt, \"q\"")


@pytest.fixture(scope="module")
def schema():
    golden = json.loads(gzip.decompress(record_jobset_schema.GOLDEN.read_bytes()))
    return jsonschema.Draft202012Validator(golden)


def manifest(*arguments):
    """Returns the manifest that `gke.sh train` passes to kubectl."""
    done = launch("gke.sh", "train", "--dry_run", *arguments)
    assert done.returncode == 0, done.stderr
    command, _, text = done.stdout.partition("\n")
    assert command == "kubectl --context=gke_my-project_us-east5_bert apply --filename=- <<'EOF'"
    assert text.endswith("\nEOF\n")
    return yaml.safe_load(text.removesuffix("EOF\n"))


@pytest.fixture(scope="module")
def jobset():
    return manifest(*TRAIN, "--slices=2", *MAIN)


def test_the_manifest_is_a_jobset(jobset, schema):
    assert [f"{error.json_path}: {error.message}" for error in schema.iter_errors(jobset)] == []


def test_contents_of_the_manifest(jobset):
    assert jobset["metadata"]["name"] == "bert"
    (slices,) = jobset["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    assert slices["replicas"] == 2
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (8, 8, "Indexed")
    # One lost host fails the job, and the failed job restarts them all.
    assert job["backoffLimit"] == 0 and jobset["spec"]["failurePolicy"]["maxRestarts"] == 100
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [1, 2]
    pod = job["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    assert pod["terminationGracePeriodSeconds"] == 300
    (container,) = pod["containers"]
    assert container["name"] == rule["onExitCodes"]["containerName"]
    assert container["image"] == "us-docker.pkg.dev/p/r/bert_jax:1"
    assert container["command"] == ["python", "launch/train.py"]
    assert container["args"] == ["gs://bucket/run", *MAIN[1:]]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    # For this resource, GKE requires the request to equal the limit.
    assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize(
    "tpu, topology, label, machine, nodes",
    [
        ("v4", "2x2x4", "tpu-v4-podslice", "ct4p-hightpu-4t", 4),
        ("v5e", "16x16", "tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 64),
        ("v5p", "8x8x8", "tpu-v5p-slice", "ct5p-hightpu-4t", 128),
        ("v6e", "2x2", "tpu-v6e-slice", "ct6e-standard-4t", 1),
    ],
)
def test_every_generation(tpu, topology, label, machine, nodes, schema):
    arguments = (*TRAIN, f"--tpu={tpu}", f"--topology={topology}")
    jobset = manifest(*arguments, *MAIN)
    assert schema.is_valid(jobset)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == nodes
    labels = job["template"]["spec"]["nodeSelector"]
    assert labels["cloud.google.com/gke-tpu-accelerator"] == label
    cluster = dry_run("gke.sh", "cluster", *arguments)
    assert f"--machine-type={machine}" in cluster[1] and f"--num-nodes={nodes}" in cluster[1]


def test_the_cluster():
    location = ["--project=my-project", "--location=us-east5"]
    commands = dry_run("gke.sh", "cluster", *WHERE, *TPU, "--slices=2", "--spot")
    assert [command[:4] for command in commands] == [
        ["gcloud", "container", "clusters", "create"],
        ["gcloud", "container", "node-pools", "create"],
        ["gcloud", "container", "node-pools", "create"],
        ["gcloud", "container", "clusters", "get-credentials"],
        ["kubectl", "--context=gke_my-project_us-east5_bert", "apply", "--server-side"],
    ]
    assert "--workload-pool=my-project.svc.id.goog" in commands[0]
    assert commands[2][4:] == [
        *("slice-1", "--cluster=bert", *location, "--node-locations=us-east5-a"),
        *("--machine-type=ct6e-standard-4t", "--tpu-topology=4x8", "--num-nodes=8", "--spot"),
    ]
    (jobset,) = commands[4][4:]
    docstring = record_jobset_schema.__doc__
    assert f"JobSet {jobset.split('/')[-2]} " in docstring, "the schema has another version"


def test_the_other_commands():
    name = "us-docker.pkg.dev/p/r/bert_jax:1"
    assert dry_run("gke.sh", "image", f"--image={name}") == [
        ["docker", "build", f"--tag={name}", f"--file={LAUNCH}/gke/Dockerfile", str(ROOT)],
        ["docker", "push", name],
    ]
    kubectl = ["kubectl", "--context=gke_my-project_us-east5_bert"]
    assert dry_run("gke.sh", "delete", *WHERE) == [[*kubectl, "delete", "jobset", "bert"]]
    assert dry_run("gke.sh", "status", *WHERE)[0] == [*kubectl, "get", "jobset", "bert"]
    assert dry_run("gke.sh", "logs", *WHERE)[0][:4] == [*kubectl, "logs", "--follow"]
    (deleted,) = dry_run("gke.sh", "delete_cluster", *WHERE)
    assert deleted[:5] == ["gcloud", "container", "clusters", "delete", "bert"]


def test_real_commands_match_the_dry_run(tmp_path):
    fakes = Fakes(tmp_path)
    for name in ("gcloud", "kubectl", "docker"):
        fakes.program(name)
    expected = []
    for command in ("cluster", "image", "status", "logs", "delete", "delete_cluster"):
        done = launch("gke.sh", command, *TRAIN, env=fakes.environment())
        assert done.returncode == 0, done.stderr
        expected += dry_run("gke.sh", command, *TRAIN)
    assert fakes.calls() == expected
    done = launch("gke.sh", "train", *TRAIN, *MAIN, env=fakes.environment())
    assert done.returncode == 0, done.stderr
    assert fakes.calls()[-1][2:] == ["apply", "--filename=-"]
    applied = yaml.safe_load((tmp_path / "manifest").read_text())
    assert applied == manifest(*TRAIN, *MAIN)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("cluster", *WHERE, "--tpu=v7", "--topology=2x2"), "--tpu is 'v7'; it must be v4, v5e,"),
        (
            ("cluster", *WHERE, "--tpu=v6e", "--topology=4x4x4"),
            "for v6e it must be a topology such as 4x8",
        ),
        (
            ("cluster", *WHERE, "--tpu=v5p", "--topology=4x4"),
            "for v5p it must be a topology such as 4x4x8",
        ),
        (("cluster", *WHERE, "--tpu=v5e", "--topology=1x2"), "with a multiple of 4 chips"),
        (("train", *TRAIN, "--", "--config=a\nb"), "a flag after the -- has more than one line"),
        ((), "the first argument is ''; it must be one of: cluster image train"),
    ],
)
def test_mistakes(arguments, words):
    assert words in mistake("gke.sh", *arguments)
