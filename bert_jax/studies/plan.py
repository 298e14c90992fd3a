"""What a study trains: its flags, and the configs and tasks that they stand for."""

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from absl import flags
from etils import epath
from flax import linen as nn
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config import cli, command_line, finetuning
from bert_jax.config.data import DATA
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.tasks.glue import SPECS, find_splits
from bert_jax.training import workdir
from bert_jax.training.flops import pretraining_flops_per_sequence
from bert_jax.training.objective import make_objective
from bert_jax.training.stages import resolve_stages
from bert_jax.training.state import abstract_params

SETTINGS = "study.json"
# The folder of fine-tunings from random weights with the shape of the first model.
RANDOM = "random_weights"
_EXAMPLE = {
    "configs": [""],
    "equal": "",
    "budget": 0.0,
    "tasks": [""],
    "glue": "",
    "seeds": 0,
    "pretraining_seeds": 0,
    "overrides": {},
}
# The keys of fine-tuning that the study sets itself.
_SET_BY_STUDY = {
    "data.input": "--tasks",
    "init_from": "--configs",
    "from_scratch": "--configs",
    "sweep.seeds": "--seeds",
    "workdir": "--workdir",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of a study; see `bert_jax.compare`.

    Attributes:
      overrides: The flags --config.KEY and --finetune.KEY, by their names.
    """

    configs: list[str] = dataclasses.field(default_factory=list)
    equal: str = "steps"
    budget: float = 0.0
    tasks: list[str] = dataclasses.field(default_factory=list)
    glue: str = ""
    seeds: int = 3
    pretraining_seeds: int = 1
    overrides: dict[str, str] = dataclasses.field(default_factory=dict)

    def check_continued(self, directory: epath.Path) -> None:
        """Checks that these are the settings of the study in a directory, if there is one.

        The study's file is only compared: a part that it names would be code to run.

        Raises:
          UserError: A flag is missing or differs; the message has both values.
        """
        path = directory / SETTINGS
        if not path.exists():
            if not self.configs:
                raise UserError("--configs is missing: the configs to compare, with commas between")
            if any((directory / name).exists() for name in (workdir.CONFIG, workdir.SWEEP)):
                raise UserError(f"{directory} holds a run, not a study; choose another --workdir")
            return
        values = files.read_json(path, _EXAMPLE)
        stored = Settings(**{name: values[name] for name in _EXAMPLE})
        if self == Settings():
            default = _flat(self)
            given = [f"--{k}={v}" for k, v in _flat(stored).items() if v != default.get(k)]
            raise UserError(
                f"{directory} holds a study; to continue it, give its flags too: "
                f"{shlex.join(given)}"
            )
        for name, old in _flat(stored).items():
            if (new := _flat(self).get(name, "without it")) != old:
                raise UserError(
                    f"the study in {directory} began with --{name}={old}, not {new}; give the "
                    "same flags, or another --workdir"
                )
        if added := _flat(self).keys() - _flat(stored).keys():
            name = min(added)
            raise UserError(
                f"the study in {directory} began without --{name}, which is now "
                f"{_flat(self)[name]}; leave it out, or choose another --workdir"
            )

    def write(self, directory: epath.Path) -> None:
        """Writes the settings into the directory of the study."""
        files.write_json(directory / SETTINGS, dataclasses.asdict(self))


def _flat(settings: Settings) -> dict[str, Any]:
    values = dataclasses.asdict(settings)
    overrides = values.pop("overrides")
    return {k: ",".join(v) if isinstance(v, list) else v for k, v in values.items()} | overrides


class Size(NamedTuple):
    """The size and the analytic cost of one pre-training; padding counts."""

    parameters: int
    steps: int
    tokens: int
    flops: float


class Model(NamedTuple):
    """A config of a study.

    Attributes:
      name: The name in tables.
      folder: The name in paths; no other model has the same.
      source: The value of --config.
      config: The config, with the steps of the study.
      teacher: The name of the model that teaches this one; empty for none.
      store: What determines the token store; models with equal values share one.
    """

    name: str
    folder: str
    source: str
    config: ConfigDict
    size: Size
    teacher: str
    store: str


class Task(NamedTuple):
    """A task of a study: its name, the value of --config, its data, and the config."""

    name: str
    source: str
    input: str
    config: ConfigDict


def models_of(settings: Settings) -> list[Model]:
    """Loads the configs of a study and gives each the steps of the equal budget.

    A config that needs a teacher and names none has the first config's model as its teacher.

    Raises:
      UserError: A config or a flag is wrong.
    """
    models: list[Model] = []
    budget = settings.budget
    if "config.workdir" in settings.overrides:
        raise UserError("--config.workdir is given, but --workdir sets it; leave it out")
    if not math.isfinite(budget) or budget < 0:
        raise UserError(f"--budget is {budget:g}; it must be a number above 0, or 0")
    typed_for_tasks = [name for name in settings.overrides if name.startswith("finetune.")]
    if settings.glue:
        typed_for_tasks.append("glue")
    if typed_for_tasks and not settings.tasks:
        raise UserError(f"--{typed_for_tasks[0]} has no effect without --tasks; leave it out")
    if budget and (typed := settings.overrides.get("config.train.num_steps")):
        raise UserError(
            f"--budget is {budget:g} and --config.train.num_steps is {typed}; give one of them"
        )
    for name, source in zip(_names(settings.configs), settings.configs, strict=True):
        if name in [model.name for model in models]:
            raise UserError(f"--configs names {name} twice; name each config once")
        config = _parsed(source, "config", settings.overrides)
        if workdir.is_finetuning(config):
            raise UserError(
                f"--configs has {source}, a config for fine-tuning; name configs for pre-training, "
                "and tasks with --tasks"
            )
        config_lib.validate(config)
        needs_teacher = any(term.needs_teacher for term in make_objective(config).terms)
        first = models[0] if models else None
        teacher = ""
        if needs_teacher and not config.objective.teacher:
            if not first:
                raise UserError(
                    f"--configs begins with {name}, which needs a teacher: name the teacher's "
                    "config first, or set --config.objective.teacher"
                )
            teacher = first.name
        shape = BertConfig(**first.config.model) if teacher else None
        total = size_of(config, shape)
        budget = budget or float(getattr(total, settings.equal))
        steps = max(1, round(budget * config.train.num_steps / getattr(total, settings.equal)))
        with config.unlocked():
            config.train.num_steps = steps
        folder = re.sub(r"[^\w.-]+", "_", name)
        # Some file systems take upper and lower case for the same.
        while folder.lower() in [RANDOM, *(model.folder.lower() for model in models)]:
            folder += "_"
        size = size_of(config, shape)
        models.append(Model(name, folder, source, config, size, teacher, _store_key(config)))
    return models


def _names(sources: Sequence[str]) -> list[str]:
    """Names configs by their files and arguments, or by the arguments if these are distinct."""
    names = [re.sub(r"^(\./)?(configs/)?|\.py(?=:|$)", "", source) for source in sources]
    arguments = [name.partition(":")[2] for name in names]
    return arguments if all(arguments) and len(set(arguments)) == len(names) else names


def size_of(config: ConfigDict, teacher: BertConfig | None = None) -> Size:
    """Computes the size and the cost of a pre-training without running it."""
    model, terms = BertConfig(**config.model), make_objective(config).terms
    params = nn.unbox(abstract_params(PreTrainingModel(model, terms)))
    tokens, flops = 0, 0.0
    stages = resolve_stages(config)
    for stage in stages:
        rows = stage.num_steps * stage.batch_size
        tokens += rows * stage.max_seq_length
        flops += rows * pretraining_flops_per_sequence(
            model, terms, stage.max_seq_length, stage.max_predictions_per_seq, teacher
        )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Size(parameters, stages[-1].end_step, tokens, flops)


def _store_key(config: ConfigDict) -> str:
    keys = ["input", "sources", *(key for key, field in DATA.items() if field.in_store)]
    values = {key: config.data[key] for key in dict.fromkeys(keys)}
    return repr((values, config.model.vocab_size, config.init_from, config.data.store))


def tasks_of(settings: Settings) -> list[Task]:
    """Loads the fine-tuning configs of a study.

    Raises:
      UserError: A task, its data or a flag is wrong.
    """
    tasks = []
    for entry in settings.tasks:
        name, _, source = entry.partition("=")
        if name in [task.name for task in tasks]:
            raise UserError(f"--tasks names {name} twice; name each task once")
        is_glue = name in finetuning.GLUE_TASKS
        if name not in finetuning.TASKS or name == "ax":
            known = ", ".join(task for task in finetuning.TASKS if task != "ax")
            raise UserError(f"--tasks has {name}; it must be one of {known}")
        if is_glue and not source:
            if not settings.glue:
                raise UserError(
                    f"--glue is missing: the folder of the GLUE tasks, for --tasks={name}"
                )
            source = str(epath.Path(settings.glue) / SPECS[name].folder)
        if not source:
            raise UserError(f"--tasks has {name} without its data; write {name}=FOLDER")
        if is_glue:
            find_splits(name, source)
        elif not files.checked_path(source, "--tasks").exists():
            raise UserError(f"--tasks: {source}, the data of {name}, does not exist")
        file = f"finetune/glue:{name}" if is_glue else f"finetune/{name}"
        config = _parsed(file, "finetune", settings.overrides)
        tasks.append(Task(name, file, source, config))
        with config.unlocked():
            config.data.input, config.init_from = source, "the pre-trained model"
        finetuning.validate(config)
    return tasks


def finetuning_flags(
    settings: Settings, task: Task, model: Model, init_from: epath.Path, is_scratch: bool
) -> list[str]:
    """Returns the flags of `bert_jax.finetune --sweep` for a model, except --workdir."""
    config = task.config
    values = {
        # One rate and one batch size, unless the flags name several.
        "sweep.learning_rates": (config.schedule.peak_learning_rate,),
        "sweep.batch_sizes": (config.train.batch_size,),
        # All models are scored after their last step.
        "eval.every_steps": 1_000_000_000,
        "dtype": model.config.dtype,
    }
    given = overrides_of(settings, "finetune")
    values = {key: value for key, value in values.items() if key not in given} | given
    values |= {
        "data.input": task.input,
        "init_from": init_from,
        "from_scratch": is_scratch,
        "sweep.seeds": tuple(range(settings.seeds)),
    }
    return [f"--config={task.source}", *(f"--config.{k}={v}" for k, v in values.items())]


def overrides_of(settings: Settings, kind: str) -> dict[str, str]:
    """Returns the values of the flags --config.KEY or --finetune.KEY, by key."""
    prefix = f"{kind}."
    return {
        name.removeprefix(prefix): value
        for name, value in settings.overrides.items()
        if name.startswith(prefix)
    }


def _parsed(source: str, kind: str, overrides: Mapping[str, str]) -> ConfigDict:
    """Loads a config and applies the flags of its kind."""
    values = flags.FlagValues()
    cli.define_config_flag(values)
    own = {name: value for name, value in overrides.items() if name.startswith(f"{kind}.")}
    for name in own:
        key = name.removeprefix("finetune.")
        if kind == "finetune" and key in _SET_BY_STUDY:
            raise UserError(f"--{name} is given, but {_SET_BY_STUDY[key]} sets it; leave it out")
    argv = [f"--config.{name.partition('.')[2]}={value}" for name, value in own.items()]
    try:
        command_line.parse(["compare", f"--config={source}", *argv], values)
    except command_line.UsageError as error:
        raise UserError(
            f"{source}, with {shlex.join(f'--{n}={v}' for n, v in own.items())}: {error}"
        ) from error
    cli.trust_flags(values)
    return values.config.copy_and_resolve_references().lock()


def pretrained(directory: epath.Path, folder: str, seed: int) -> epath.Path:
    """Returns the work directory of a pre-training."""
    # Weights & Biases shows the last part of the path as the name of the run.
    return directory / "pretrained" / f"{folder}_seed_{seed}"


def finetuned(directory: epath.Path, folder: str, seed: int, task: str) -> epath.Path:
    """Returns the directory of the sweep of a task."""
    return directory / "finetuned" / f"{folder}_seed_{seed}" / task
