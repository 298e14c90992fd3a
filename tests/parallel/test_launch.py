"""How a process is told, or finds out, that it is one of several."""

import time

import pytest
from absl import flags

from bert_jax import cli
from bert_jax.parallel import launch
from tests import runs
from tests.parallel.processes import PATIENCE_SECONDS, finish, start


class TestFlags:
    @pytest.fixture
    def parse(self):
        def parse(*arguments):
            values = flags.FlagValues()
            cli.define_host_flags(values)
            values(["program", *arguments])
            with cli.joined_hosts(values):
                return "went on"

        return parse

    def test_without_any_a_run_is_alone(self, parse, monkeypatch):
        for name in ("SLURM_JOB_ID", "TPU_WORKER_HOSTNAMES"):
            monkeypatch.delenv(name, raising=False)
        assert parse() == "went on"

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--coordinator=a:1"], "--num_processes and --process_id missing"),
            (["--num_processes=2", "--process_id=0"], "--coordinator missing"),
            (["--coordinator=a:1", "--process_id=0"], "--num_processes missing"),
            (["--coordinator=a", "--num_processes=2", "--process_id=0"], "no HOST:PORT"),
            (["--coordinator=a:0", "--num_processes=2", "--process_id=0"], "no HOST:PORT"),
            (["--coordinator=a:65536", "--num_processes=2", "--process_id=0"], "no HOST:PORT"),
            (["--coordinator=a:1", "--num_processes=2", "--process_id=2"], "from 0 to 1"),
            (["--coordinator=a:1", "--num_processes=2", "--process_id=-1"], "from 0 to 1"),
            (["--coordinator=a:1", "--num_processes=0", "--process_id=0"], "must be 1 or more"),
        ],
    )
    def test_what_cannot_be(self, parse, arguments, words):
        with pytest.raises(cli.UsageError, match=words):
            parse(*arguments)

    def test_the_command_says_so_with_status_2(self, tmp_path):
        ended = runs.run([*runs.main_command(tmp_path / "run"), "--process_id=0"])
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: --coordinator and --num_processes missing")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("number", [0, 1])
    def test_processes_that_do_not_meet(self, tmp_path, number):
        began = time.monotonic()
        processes = start(tmp_path / "run", 2, numbers=[number], options={"join_seconds": 2})
        ((status, out, err),) = finish(processes, 2 + PATIENCE_SECONDS)
        assert time.monotonic() - began < 2 + PATIENCE_SECONDS
        assert (status, out) == (launch.LOST_STATUS, "")
        assert err.startswith("error: the processes of this run did not all meet at 127.0.0.1:")
        assert "within 2 seconds" in err and err.count("\n") == 1
        assert not (tmp_path / "run").exists()


class TestEnvironment:
    """Where the environment says that there are others; the variables are jax's own."""

    @pytest.fixture(autouse=True)
    def nothing_said(self, monkeypatch):
        for name in ("SLURM_JOB_ID", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize(("tasks", "several"), [("1", False), ("4", True)])
    def test_slurm(self, monkeypatch, tasks, several):
        for name in ("JOB_ID", "STEP_NODELIST", "PROCID", "LOCALID"):
            monkeypatch.setenv(f"SLURM_{name}", "0")
        monkeypatch.setenv("SLURM_NTASKS", tasks)
        assert launch.is_one_of_several() == several

    def test_a_slurm_job_without_srun_is_one_process(self, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_NTASKS", "4")
        assert not launch.is_one_of_several()

    def test_without_tpu_chips_hostnames_say_nothing(self, monkeypatch):
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
        assert not launch.is_one_of_several()

    @pytest.mark.parametrize(
        ("names", "slices", "several"),
        [("a", "", False), ("a,b", "", True), ("a", "2", True)],
    )
    def test_kubernetes_with_tpus(self, monkeypatch, names, slices, several):
        self.with_chips(monkeypatch)
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", names)
        monkeypatch.setenv("MEGASCALE_NUM_SLICES", slices)
        assert launch.is_one_of_several() == several

    def test_a_tpu_vm_is_asked_by_jax(self, monkeypatch):
        self.with_chips(monkeypatch)
        monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
        assert launch.is_one_of_several()

    def with_chips(self, monkeypatch):
        import jax

        monkeypatch.setattr(type(jax.config), "jax_platforms", "tpu,cpu", raising=False)
