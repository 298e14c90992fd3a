"""The flags of a study: equal budgets, and mistakes."""

import pytest
from etils import epath

from bert_jax.base.errors import UserError
from bert_jax.studies import plan
from bert_jax.studies.plan import Settings, models_of, tasks_of

SIZES = ["sizes:tiny_L1_H128_A2", "sizes:tiny_L2_H192_A3"]


@pytest.mark.parametrize("equal", ["steps", "tokens", "flops"])
def test_the_budget_is_that_of_the_first_config(equal):
    first, second, other = models_of(
        Settings([*SIZES, "mini_laptop"], equal, overrides={"config.train.num_steps": "500"})
    )
    assert [m.name for m in (first, second)] == ["sizes:tiny_L1_H128_A2", "sizes:tiny_L2_H192_A3"]
    assert first.size.steps == 500 and first.config.train.num_steps == 500
    assert getattr(second.size, equal) == pytest.approx(getattr(first.size, equal), rel=0.02)
    assert getattr(other.size, equal) == pytest.approx(getattr(first.size, equal), rel=0.3)
    assert other.size.steps == other.config.train.num_steps
    # They have the same vocabulary and text; mini_laptop has another.
    assert first.store == second.store != other.store


def test_sizes_are_counted():
    (model,) = models_of(Settings(["sizes:tiny_L1_H128_A2"], "tokens", budget=1_126_400))
    # 900 steps of 32 rows of 32 tokens, and 100 of 64.
    assert model.name == "tiny_L1_H128_A2" and model.folder == "tiny_L1_H128_A2"
    assert model.size[:3] == (1_354_626, 1000, 1_126_400)
    (flops,) = models_of(Settings(["sizes:tiny_L1_H128_A2"], "flops", budget=model.size.flops))
    assert flops.size == model.size


def test_files_of_the_user(tmp_path, monkeypatch):
    """A file in the current directory is named as a built-in config is, and may take arguments."""
    (tmp_path / "mine.py").write_text(
        "from bert_jax import load_config\n"
        "def get_config(arg='16'):\n"
        "    c = load_config('tiny')\n"
        "    c.train.batch_size = int(arg)\n"
        "    return c\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_8.py").write_text((tmp_path / "mine.py").read_text())
    models = models_of(Settings(["./mine.py:8", "mine.py", "tiny", "mine_8.py"]))
    assert [model.name for model in models] == ["mine:8", "mine", "tiny", "mine_8"]
    # Two models never share a folder.
    assert [model.folder for model in models] == ["mine_8", "mine", "tiny", "mine_8_"]
    assert [model.config.train.batch_size for model in models[:2]] == [8, 16]
    names = [model.name for model in models_of(Settings(["mine.py:8", f"{tmp_path}/mine.py:4"]))]
    assert names == ["8", "4"]


def test_a_student_learns_from_the_first_config():
    configs = ["comparison:bert", "comparison:distilbert"]
    teacher, student = models_of(Settings(configs, "flops"))
    assert (teacher.teacher, student.teacher) == ("", "bert")
    assert teacher.store == student.store
    assert student.size.flops == pytest.approx(teacher.size.flops, rel=1e-3)
    with pytest.raises(UserError, match="begins with comparison:distilbert, which needs a teacher"):
        models_of(Settings(["comparison:distilbert", "tiny"]))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"configs": ["tiny", "configs/tiny.py"]}, "--configs names tiny twice"),
        ({"configs": ["tinny"]}, "there is no config file 'tinny'; did you mean tiny"),
        ({"configs": ["finetune/glue:mrpc"]}, "--configs has finetune/glue:mrpc, .* fine-tuning"),
        (
            {"overrides": {"config.train.num_step": "3"}},
            "tiny, with --config.train.num_step=3: unknown config key train.num_step; did you mean",
        ),
        ({"overrides": {"config.workdir": "x"}}, "--config.workdir is given, but --workdir sets"),
        (
            {"budget": 9.0, "overrides": {"config.train.num_steps": "8"}},
            "--budget is 9 and --config.train.num_steps is 8; give one of them",
        ),
        ({"budget": float("nan")}, "--budget is nan; it must be a number above 0"),
        ({"budget": -5.0}, "--budget is -5; it must be"),
        ({"glue": "glue_data"}, "--glue has no effect without --tasks"),
        ({"tasks": ["mrcp"]}, "--tasks has mrcp; it must be one of cola, "),
        ({"tasks": ["mrpc"]}, "--glue is missing: the folder of the GLUE tasks, for --tasks=mrpc"),
        ({"tasks": ["mrpc"], "glue": "nowhere"}, "nowhere/MRPC"),
        ({"tasks": ["ner"]}, "--tasks has ner without its data; write ner=FOLDER"),
        ({"tasks": ["ner=nowhere"]}, "--tasks: nowhere, the data of ner, does not exist"),
        ({"tasks": ["ner=.", "ner=.."]}, "--tasks names ner twice"),
        (
            {"tasks": ["ner=."], "overrides": {"finetune.sweep.seeds": "3"}},
            "--finetune.sweep.seeds is given, but --seeds sets it; leave it out",
        ),
        (
            {"tasks": ["ner=."], "overrides": {"finetune.train.epochs": "3"}},
            "finetune/ner, with --finetune.train.epochs=3: unknown config key train.epochs",
        ),
    ],
)
def test_mistakes(values, message):
    settings = Settings(**{"configs": ["tiny"]} | values)
    with pytest.raises(UserError, match=message):
        models_of(settings)
        tasks_of(settings)


def test_a_stored_study_is_only_compared(tmp_path):
    directory = epath.Path(tmp_path)
    (tmp_path / "planted.py").write_text("raise SystemExit('executed')")
    planted = Settings([f"{tmp_path}/planted.py"], seeds=2, overrides={"config.family": "x:Y"})
    planted.write(directory)
    with pytest.raises(UserError) as error:
        Settings().check_continued(directory)
    given = f"--configs={tmp_path}/planted.py --seeds=2 --config.family=x:Y"
    assert f"holds a study; to continue it, give its flags too: {given}" in str(error.value)


def test_a_study_keeps_its_flags(tmp_path):
    directory = epath.Path(tmp_path)
    with pytest.raises(UserError, match="--configs is missing"):
        Settings().check_continued(directory)
    begun = Settings(["tiny"], seeds=2, overrides={"config.seed": "3"})
    begun.check_continued(directory)
    begun.write(directory)
    begun.check_continued(directory)
    for values, message in (
        ({"seeds": 5}, "began with --seeds=2, not 5"),
        ({"configs": ["tiny", "mini"]}, "began with --configs=tiny, not tiny,mini"),
        ({"overrides": {"config.seed": "4"}}, "began with --config.seed=3, not 4"),
        ({"overrides": {}}, "began with --config.seed=3, not without it"),
        (
            {"overrides": {"config.seed": "3", "config.dtype": "float32"}},
            "began without --config.dtype, which is now float32",
        ),
    ):
        changed = {"configs": ["tiny"], "seeds": 2, "overrides": {"config.seed": "3"}} | values
        with pytest.raises(UserError, match=message):
            Settings(**changed).check_continued(directory)
    (tmp_path / plan.SETTINGS).rename(tmp_path / "config.json")
    with pytest.raises(UserError, match="holds a run, not a study"):
        begun.check_continued(directory)
