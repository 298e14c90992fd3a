"""launch/prepare.sh: tasks on Slurm and Kubernetes, and Dataflow."""

import subprocess

import pytest
import yaml

from tests.launch.fakes import LAUNCH, ROOT, Fakes, dry_run, launch, mistake

SLURM = ("slurm", "--name=wiki", "--output=/shared/my store", "--num_tasks=64")
GOOGLE = ("--name=wiki", "--output=gs://b/wiki", "--image=us-docker.pkg.dev/p/r/bert_jax:1")
DATAFLOW = ("dataflow", *GOOGLE, "--project=p", "--region=us-east5")
FLAGS = ("--", r"--input=it's my $x & \text/*.jsonl", "--vocab_size=30522")


def test_a_job_array(tmp_path):
    wanted = [
        [
            *("sbatch", "--job-name=wiki", "--output=wiki-%a.log", "--time=24:00:00"),
            *("--array=0-63", "--cpus-per-task=4", "--mem=8G", f"{LAUNCH}/slurm/prepare.sbatch"),
            *("python", "-m", "bert_jax.prepare", "--output=/shared/my store", "--num_tasks=64"),
            *FLAGS[1:],
        ]
    ]
    assert dry_run("prepare.sh", *SLURM, *FLAGS) == wanted
    fakes = Fakes(tmp_path)
    fakes.program("sbatch")
    done = launch("prepare.sh", *SLURM, *FLAGS, env=fakes.environment())
    assert done.returncode == 0 and fakes.calls() == wanted, done.stderr


def test_a_task_of_the_array():
    command = ["bash", f"{LAUNCH}/slurm/prepare.sbatch", "printf", "%s\n", "--output=my store"]
    done = subprocess.run(
        command,
        env={"SLURM_ARRAY_TASK_ID": "7", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["--output=my store", "--task=7"]


def test_an_indexed_job():
    done = launch("prepare.sh", "kubernetes", "--dry_run", *GOOGLE, "--num_tasks=8", *FLAGS)
    command, _, text = done.stdout.partition("\n")
    assert command == "kubectl apply --filename=- <<'EOF'"
    job = yaml.safe_load(text.removesuffix("EOF\n"))
    spec = job["spec"]
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "wiki")
    assert (spec["completions"], spec["completionMode"]) == (8, "Indexed")
    (container,) = spec["template"]["spec"]["containers"]
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert container["command"] == ["python", "-m", "bert_jax.prepare"]
    assert container["args"] == [
        *("--output=gs://b/wiki", "--num_tasks=8", *FLAGS[1:]),
        "--task=$(JOB_COMPLETION_INDEX)",
    ]
    assert container["resources"]["requests"] == {"cpu": 4, "memory": "8Gi"}


def test_dataflow():
    (command,) = dry_run("prepare.sh", *DATAFLOW, *FLAGS)
    at = command.index("--")
    assert command[:at] == [
        *("python", "-m", "bert_jax.prepare", "--output=gs://b/wiki", *FLAGS[1:]),
        "--runner=DataflowRunner",
    ]
    assert "--temp_location=gs://b/wiki.temp" in command[at:] and "--region=us-east5" in command
    name = "us-docker.pkg.dev/p/r/bert_jax:1"
    assert f"--sdk_container_image={name}" in command
    assert dry_run("prepare.sh", "image", f"--image={name}") == [
        ["docker", "build", f"--tag={name}", f"--file={LAUNCH}/dataflow/Dockerfile", str(ROOT)],
        ["docker", "push", name],
    ]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("run", *FLAGS), "the first argument is 'run'; it must be one of: slurm kubernetes image"),
        ((*SLURM, "--memory=much", *FLAGS), "--memory is 'much'; it must be a size, such as 8G"),
        (SLURM, "the flags of bert_jax.prepare are missing"),
        ((*SLURM, *FLAGS, "--task=3"), "--task does not belong after the --"),
        (("kubernetes", *GOOGLE[:2], *FLAGS), "--image is missing: the container image"),
        ((*DATAFLOW, "--output=/shared/x", *FLAGS), "for Dataflow it must be gs://BUCKET/"),
    ],
)
def test_mistakes(arguments, words):
    assert words in mistake("prepare.sh", *arguments)
