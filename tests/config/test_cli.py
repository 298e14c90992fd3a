"""Flags, exit statuses and messages of the commands."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from absl import flags

import bert_jax
from bert_jax import __main__
from bert_jax.base.errors import UserError
from bert_jax.config import cli, default_config, flatten, to_dict
from bert_jax.config.command_line import config_source
from tests import refusals, runs

CONFIG = """
from bert_jax.config import default_config
def get_config(arg=""):
    c = default_config()
    {line}
    return c.lock()
"""


def parse(*arguments):
    values = flags.FlagValues()
    argv = ["program", *arguments]
    cli.define_config_flag(values)
    flags.DEFINE_string("workdir", "", "", flag_values=values)
    flags.DEFINE_integer("steps", 3, "", flag_values=values)
    flags.DEFINE_float("rate", 0.5, "", flag_values=values)
    flags.DEFINE_boolean("fast", False, "", flag_values=values)
    cli.parse(argv, values, load_stored=cli.stored_config)
    return values


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(CONFIG.format(line=""))
    return f"--config={path}"


def test_flags_override_values(config):
    values = parse(
        config,
        "--config.train.num_steps=7",
        "--config.model.hidden_size",
        "64",
        "--config.data.lowercase=false",
        "--config.fused_attention=0",
        "--config.train.stages[0].fraction=0.5",
        "--config.data.input=a.txt,b.txt",
        "--config.objective.terms=my.module:Term, masked_lm",
        "--config.schedule.peak_learning_rate",
        "-.5",
        "--workdir=w",
        "--fast",
    )
    found = values.config
    assert (found.train.num_steps, found.model.hidden_size) == (7, 64)
    assert (found.data.lowercase, found.fused_attention) == (False, False)
    assert found.train.stages[0].fraction == 0.5
    assert found.data.input == ("a.txt", "b.txt")
    assert found.schedule.peak_learning_rate == -0.5
    # The same form as in a config file.
    assert found.objective.terms == ("my.module:Term", "masked_lm")
    given = {"fused_attention", "data.input", "objective.terms", "train.stages[0].fraction"}
    assert given < config_source(values).flags
    assert (values.workdir, values.fast, values.steps) == ("w", True, 3)


@pytest.mark.parametrize("form", ["--config={}", "--config {}", "-config={}"])
def test_flags_may_come_before_the_config(config, form):
    path = config.removeprefix("--config=")
    keys = ("--config.train.num_steps=7", "--config.seed", "5", "--config.data.input=a b.txt")
    values = parse("--steps=2", *keys, *form.format(path).split(), "--fast", "--config.dtype=x")
    found = values.config
    assert (found.train.num_steps, found.seed, found.dtype) == (7, 5, "x")
    assert tuple(found.data.input) == ("a b.txt",)
    assert (values.steps, values.fast) == (2, True)
    assert config_source(values).flags == {"train.num_steps", "seed", "data.input", "dtype"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--config.trian.num_steps=3"], "unknown config key trian.num_steps; did you mean train."),
        (
            ["--config.train.num_stepz=3"],
            "unknown config key train.num_stepz; did you mean train.num_steps?",
        ),
        (["--config.num_hidden_layers=3"], "did you mean model.num_hidden_layers?"),
        (["--config.train.stages[7].fraction=3"], "unknown config key train.stages[7].fraction"),
        (["--config.train.num_steps=foo"], "flag --config.train.num_steps=foo: "),
        (["--config.data.lowercase=maybe"], "flag --config.data.lowercase=maybe: "),
        (["--config.data.input=a", "--config.data.input=b"], "config.data.input is given twice"),
        (["--config.seed=1", "--config.seed=2"], "config.seed is given twice"),
        (["--config.train.stages=5"], "it has keys of its own, which flags change one by one"),
        (["--config.init_from"], "flag --config.init_from=True: it needs a value"),
        (["--config.train.learning_rate=3"], "did you mean schedule.peak_learning_rate?"),
        (["--lr=3"], "unknown flag --lr; did you mean --config.schedule.peak_learning_rate?"),
        (["--config.epochs=3"], "did you mean train.num_steps?"),
        (["--output_dir=x"], "unknown flag --output_dir; did you mean --workdir?"),
        (["--workdri=x"], "unknown flag --workdri; did you mean --workdir?"),
        (["--qqqq"], "unknown flag --qqqq"),
        (["--steps=many"], "flag --steps=many: "),
        (["--rate=nan"], "--rate is nan; it must be a number"),
        (["words"], "unexpected argument 'words'"),
    ],
)
def test_mistakes_in_flags(config, arguments, message):
    with pytest.raises(cli.UsageError) as info:
        parse(config, *arguments)
    assert message in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    "given",
    [
        r"a\,b.txt",
        "(weird) name.txt",
        "/ü (1)/it's [a-z]*.txt",
    ],
)
@pytest.mark.parametrize("form", ["--config.data.input={}", "--config.data.input {}"])
def test_paths_are_not_split(config, given, form):
    flag, value = form.split("{")[0].rstrip(" "), given
    arguments = [flag + value] if flag.endswith("=") else [flag, value]
    assert tuple(parse(config, *arguments).config.data.input) == (given,)


@pytest.mark.parametrize(
    "given, expected",
    [
        ("~/a.txt", "/home/me/a.txt"),
        ("train=~/a,validation=~/b.tsv", "train=/home/me/a,validation=/home/me/b.tsv"),
        ("a~/b", "a~/b"),
        ("~other/b", "~other/b"),
    ],
)
def test_the_home_directory(config, monkeypatch, given, expected):
    """Shells expand ~ only at the beginning of a word: --workdir=~/runs would create "~"."""
    monkeypatch.setenv("HOME", "/home/me")
    values = parse(config, f"--config.data.input={given}", f"--workdir={given}")
    assert ",".join(values.config.data.input) == values.workdir == expected


def test_a_flag_for_the_text_replaces_the_other_key_of_the_file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(CONFIG.format(line="c.data.input = ('mine.txt',)"))
    data = parse(f"--config={path}", "--config.data.sources=en=a.txt").config.data
    assert (data.input, data.sources) == (("sotu",), ("en=a.txt",))


def test_flags_in_a_file(config, tmp_path):
    (tmp_path / "flags").write_text("--config.seed=77\n--steps=9\n")
    values = parse(config, f"--flagfile={tmp_path}/flags")
    assert (values.config.seed, values.steps) == (77, 9)


@pytest.mark.parametrize(
    "line, message",
    [
        ("c.modle = 1", r"^modle is not a known key; did you mean model\?$"),
        ("c.model.update(hiden_size=1)", "^hiden_size .* did you mean hidden_size"),
        ("from bert_jax.base.errors import UserError; raise UserError('bad size')", "^bad size$"),
    ],
)
def test_config_files_with_mistakes(tmp_path, line, message):
    path = tmp_path / "a.py"
    path.write_text(CONFIG.format(line=line))
    with pytest.raises(UserError, match=message):
        parse(f"--config={path}")


def test_an_error_in_a_config_file_shows_its_line(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(CONFIG.format(line="int('x')"))
    done = runs.run([sys.executable, "-m", "bert_jax", f"--config={path}"])
    assert done.returncode == 1
    assert done.stderr.startswith("error: ValueError: invalid literal for int() with base 10: 'x'")
    assert done.stderr.endswith(f" ({path}:5; --traceback shows more)\n")


def test_missing_config_files():
    with pytest.raises(UserError, match="there is no config file 'nope.py'$"):
        parse("--config", "nope.py:base")
    with pytest.raises(UserError, match="no config file 'tinny'; did you mean tiny?"):
        parse("--config=tinny")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("camembert", "roberta:camembert"),
        ("camembert-base", "roberta:camembert"),
        ("vinai/phobert-base-v2", "roberta:phobert"),
        ("configs/xlmr.py", "roberta:xlmr"),
        ("xlm-roberta", "roberta:xlmr"),
        ("FacebookAI/xlm-roberta-base", "roberta:xlmr"),
        ("XLM-R", "roberta:xlmr"),
        ("mbert", "multilingual:base"),
        ("bert-base-multilingual-cased", "multilingual:base"),
        ("bert-base-uncased", "base"),
        ("bert-large", "large"),
        ("roberta-base", "roberta"),
        ("answerdotai/ettin", "modernbert:ettin_150m"),
    ],
)
def test_names_of_models_lead_to_their_configs(name, meant):
    with pytest.raises(UserError) as error:
        parse(f"--config={name}")
    assert str(error.value) == f"there is no config file {name!r}; did you mean {meant}?"
    bert_jax.load_config(meant)


@pytest.mark.parametrize("name", ["scibert", "dmis-lab/biobert-v1.1", "legal-bert-base-uncased"])
def test_models_of_other_text_have_the_recipe_of_bert(name):
    words = "did you mean base, or continue:MODEL to go on from a trained model, with --config.data"
    with pytest.raises(UserError, match=words):
        parse(f"--config={name}")


def test_configs_of_the_package_have_short_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "configs/tiny.py"):
        assert parse(f"--config={name}").config.train.num_steps == 2500
    assert parse("--config=finetune/glue:mrpc").config.task == "mrpc"
    # A file that happens to have such a name is not run.
    (tmp_path / "tiny").write_text("raise SystemExit(9)")
    assert parse("--config=tiny").config.train.num_steps == 2500


def test_the_config_of_a_work_directory(tmp_path):
    config = default_config()
    config.seed = 5
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    values = parse(f"--workdir={tmp_path}", "--config.train.num_steps=7")
    assert (values.config.seed, values.config.train.num_steps) == (5, 7)
    source = config_source(values)
    assert source.is_stored and source.values.train.num_steps == 1_000_000
    assert source.flags == {"train.num_steps"}
    assert parse(f"--workdir={tmp_path}", "--config=tiny").config.seed == 0
    for flag in (f"--workdir={tmp_path}/other", "--config.seed=3"):
        with pytest.raises(cli.UsageError, match="--config is missing: a config file"):
            parse(flag)


def test_required_flags():
    values = flags.FlagValues()
    flags.DEFINE_enum("to", None, ["a", "b"], "The output.", required=True, flag_values=values)
    with pytest.raises(cli.UsageError, match=r"^--to is missing: <a\|b>: The output$"):
        cli.parse(["program"], values)


def run(body, *arguments):
    """Runs program.py with the body of its main function."""
    command = [sys.executable, "-m", "tests.config.program", body, *arguments]
    return runs.run(command)


@pytest.mark.parametrize(
    "body, status, error",
    [
        ("pass", 0, ""),
        ("return 5", 5, ""),
        ("raise UserError('no such thing')", 1, "error: no such thing\n"),
        (
            "raise UserError('no \\x1b]0;x\\x07 thing')",
            1,
            "error: no \\u001b]0;x\\u0007 thing\n",
        ),
        ("raise KeyboardInterrupt", 130, "interrupted\n"),
        (
            "raise OSError(errno.ENOSPC, 'No space left on device', 'x/y')",
            1,
            "error: x/y: No space left on device\n",
        ),
        ("raise OSError(errno.EROFS, 'Read-only')", 1, "error: writing: Read-only\n"),
        ("raise BrokenPipeError", 1, ""),
        (
            "raise ModuleNotFoundError('no', name='gcsfs')",
            1,
            "error: the package gcsfs is missing: pip install -e '.[gcs]'\n",
        ),
        (
            "raise RuntimeError('RESOURCE_EXHAUSTED: E1: HbmOom:\\nUsed 9G of 8G.\\nlist')",
            1,
            "error: the device ran out of memory (Used 9G of 8G); try a larger "
            "config.train.gradient_accumulation_steps, config.remat=full, config.sharding=fsdp, a "
            "smaller config.eval.batch_size or, in a new run, a smaller config.train.batch_size\n",
        ),
    ],
)
def test_exit_status_and_message(body, status, error):
    result = run(body)
    assert (result.returncode, result.stderr) == (status, error)


def test_unforeseen_errors_are_one_line():
    found = run("1 / 0")
    assert found.returncode == 1
    line = (
        r"error: ZeroDivisionError: division by zero \(bert_jax/config/cli.py:\d+; --traceback .*\n"
    )
    assert re.fullmatch(line, found.stderr)
    shown = run("1 / 0", "--traceback").stderr
    assert shown.startswith("Traceback (most recent call last):\n") and found.stderr in shown
    # A panic of a library in Rust.
    panic = "raise type('PanicException', (BaseException,), {})('index out of bounds')"
    found = run(panic)
    assert found.returncode == 1
    assert found.stderr.startswith("error: PanicException: index out of bounds (bert_jax/")
    assert found.stderr.count("\n") == 1


def test_python_warnings_are_one_line():
    found = run("import warnings; warnings.warn('one row was cut')")
    assert (found.returncode, found.stderr) == (0, "warning: one row was cut\n")


def test_help_and_verbosity():
    result = run("print('not reached')", "--help")
    assert result.returncode == 0
    assert "--help" in result.stdout and "not reached" not in result.stdout
    assert "chatter" in run("pass", "--verbosity=0").stderr


def test_closed_stdout_gives_no_error():
    body = "[print('line' * 100) for _ in range(100000)]"
    command = [sys.executable, "-m", "tests.config.program", body]
    with subprocess.Popen(command, cwd=runs.ROOT, stdout=-1, stderr=-1) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""


def test_words_may_be_anywhere_among_the_flags():
    def left(*arguments, words):
        values = flags.FlagValues()
        flags.DEFINE_integer("steps", 3, "", flag_values=values)
        argv = cli.parse(["program", *arguments], values, words=words)
        return argv[1:], values.steps

    assert left("a", "--steps=5", "b", words=True) == (["a", "b"], 5)
    assert left("--steps=5", "--", "--steps=6", words=True) == (["--steps=6"], 5)
    with pytest.raises(cli.UsageError, match="unexpected argument 'a'"):
        left("--steps=5", "a", words=False)
    assert left("--steps=5", "--", "- a b", words=True) == (["- a b"], 5)


HOSTS = ("--coordinator=a:1", "--num_processes=2", "--process_id=0")


class TestHostFlags:
    @pytest.fixture
    def join(self):
        def join(*arguments):
            values = flags.FlagValues()
            cli.define_host_flags(values)
            values(["program", *arguments])
            with cli.joined_hosts(values):
                return "went on"

        return join

    @pytest.mark.parametrize(
        "arguments", [HOSTS[:1], HOSTS[1:], HOSTS[::2], ("--coordinator=a", *HOSTS[1:])]
    )
    def test_host_flags_must_be_given_together(self, join, arguments):
        with pytest.raises(cli.UsageError, match="--coordinator=HOST:PORT, --num_processes=N and"):
            join(*arguments)


def test_sigterm_removes_temporary_files():
    body = (
        "import os, signal\n"
        "    cli.end_on_sigterm()\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "    finally:\n"
        "        print('cleaned up')"
    )
    result = run(body)
    assert (result.returncode, result.stdout, result.stderr) == (143, "cleaned up\n", "")


def test_commands_and_configs_are_listed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bert_jax"])
    __main__.main()
    printed = capsys.readouterr().out
    for name in ("main", "finetune", "predict", "show_batch", "report", "tiny", "finetune/glue"):
        assert re.search(rf"^ {name} +[A-Z]", printed, re.MULTILINE), name
    assert "cpu_allocator" not in printed
    monkeypatch.setattr(sys, "argv", ["bert_jax", "--version"])
    __main__.main()
    assert capsys.readouterr().out == f"bert_jax {bert_jax.__version__}\n"


@pytest.mark.parametrize(
    "key, words",
    [
        ("config.data.encoding", ["config.data.encoding (pre-training; by default 'utf-8')"]),
        ("schedule", ["config.schedule.peak_learning_rate (", "(fine-tuning; by", "above 0"]),
        ("squad.version", ["config.squad.version (fine-tuning", "Allowed: one of 1.1, 2.0."]),
        ("lr", ["there is no key 'lr'; did you mean schedule.peak_learning_rate?"]),
    ],
)
def test_keys_are_explained(key, words):
    done = runs.run([sys.executable, "-m", "bert_jax", f"--explain={key}"])
    assert (done.returncode == 0) == (key != "lr")
    assert all(text in done.stdout + done.stderr for text in words), done


def test_a_config_is_printed_in_full():
    done = runs.run([sys.executable, "-m", "bert_jax", "--config=tiny", "--config.seed=7"])
    assert (done.returncode, done.stderr) == (0, "")
    printed = dict(line.removeprefix("config.").split(" = ") for line in done.stdout.splitlines())
    expected = bert_jax.load_config("tiny")
    expected.seed = 7
    values = {key: json.loads(text) for key, text in printed.items()}
    assert values == dict(flatten(to_dict(expected)))


@pytest.mark.parametrize("command", ["convert --input", "evaluate --workdir"])
def test_a_model_has_one_name_in_every_command(command):
    name, other = command.split()
    sentence = refusals.command(name, "--model=a", f"{other}=b", "--output=x", "--to=huggingface")
    assert sentence == "flag --model=b: already defined as a"


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("tiny", "runs/tiny"),
        ("configs/large.py", "runs/large"),
        ("finetune/glue:mrpc", "runs/glue_mrpc"),
        ("continue:models/gte-base-v1.5", "runs/continue_gte-base-v1.5"),
    ],
)
def test_the_default_work_directory_has_the_name_of_the_config(
    monkeypatch, capsys, name, directory
):
    given = SimpleNamespace(workdir="", config=SimpleNamespace(workdir=""))
    monkeypatch.setattr(cli.flags, "FLAGS", given)
    monkeypatch.setattr(cli, "config_source", lambda: SimpleNamespace(name=name))
    assert cli.work_directory(alone=True) == directory
    assert f"The work directory is {directory};" in capsys.readouterr().out
    with pytest.raises(cli.UsageError, match="--workdir is missing"):
        cli.work_directory(alone=False)
    given.config.workdir = "mine"
    assert cli.work_directory(alone=False) == "mine"
