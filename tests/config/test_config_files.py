"""The files in configs/: valid, locked, and with a docstring that explains how to use them."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from bert_jax import load_config
from bert_jax.base.errors import UserError
from bert_jax.config import default_config, to_dict, validate
from bert_jax.config.finetuning import validate as validate_finetuning
from bert_jax.training.stages import resolve_stages
from configs import (
    ablations,
    albert,
    bart,
    electra,
    esm,
    eurobert,
    flaubert,
    gte,
    herbert,
    modernbert,
    nomic_bert,
    roberta,
    sizes,
    spanbert,
)

CONFIGS = Path(__file__).parents[2] / "configs"
# A study lists runs; tests/studies/ has its tests.
FILES = sorted({*CONFIGS.rglob("*.py")} - {CONFIGS / "studies.py"})
# The arguments of the files that take some; the others have none.
ARGUMENTS = {
    "ablations.py": [name + size for name in ablations.ABLATIONS for size in ("", "_tiny")],
    "albert.py": [*albert.SIZES, "base_v2", "xlarge_v2"],
    "bart.py": bart.SIZES,
    "continue.py": ["model"],
    "distilbert.py": ["base", "tiny"],
    "electra.py": electra.SIZES,
    "embedding.py": ["pairs", "sts", "nli", "simcse", "e5"],
    "esm.py": esm.SIZES,
    "eurobert.py": eurobert.SIZES,
    "flaubert.py": flaubert.SIZES,
    "gte.py": gte.SIZES,
    "herbert.py": herbert.SIZES,
    "modernbert.py": modernbert.SIZES,
    "multi_vector.py": ["pairs", "distill"],
    "nomic_bert.py": nomic_bert.SIZES,
    "retromae.py": ["base", "tiny"],
    "roberta.py": roberta.SIZES,
    "sizes.py": sizes.SIZES,
    "sparse.py": ["pairs", "distill", "inference_free"],
    "spanbert.py": spanbert.SIZES,
}
CASES = {
    f"{path.relative_to(CONFIGS)}{':' * bool(argument)}{argument}": (path, argument)
    for path in FILES
    for argument in ARGUMENTS.get(path.name, [""])
}


def get_config(path, *args):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*args)


@pytest.mark.parametrize(("path", "argument"), CASES.values(), ids=CASES)
def test_config_file_is_valid_locked_and_documented(path, argument, tmp_path, monkeypatch):
    # The directory of a model whose weights are not read.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    shape = to_dict(load_config("tiny").model)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "bert"} | shape))
    config = get_config(path, *[argument] * bool(argument))
    assert config.is_locked
    assert config.log.every_steps == 0, "a fixed number gives a short run too few lines"
    if "task" in config:
        with config.unlocked():
            config.init_from, config.data.input = "bert", "folder"
        validate_finetuning(config)
    else:
        validate(config)
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    command = f"--config=configs/{path.relative_to(CONFIGS)}"
    assert all(text in docstring for text in (command, "Hardware", "Expected"))
    assert "eproduced" in docstring or "depends" in docstring
    with pytest.raises(UserError, match="leave that out|it must end in one of|does not exist"):
        get_config(path, "nonsense")


@pytest.mark.parametrize(
    ("name", "num_warmup_steps"),
    [
        *((f"{family}:tiny", 100) for family in ("roberta", "flaubert", "herbert", "multilingual")),
        *((f"{family}:tiny", 100) for family in ("albert", "bart", "electra", "spanbert")),
        *((f"{family}:tiny", 100) for family in ("eurobert", "gte", "nomic_bert")),
        *(("modernbert:tiny", 100), ("distilbert:tiny", 40), ("tiny", 100), ("mini_laptop", 500)),
    ],
)
def test_short_runs_warm_up_for_a_fraction_of_their_steps(name, num_warmup_steps):
    config = load_config(name)
    assert resolve_stages(config)[0].curve.num_warmup_steps == num_warmup_steps
    with config.unlocked():
        config.train.num_steps = 20
    assert 0 <= resolve_stages(config)[0].curve.num_warmup_steps <= 2


def test_base_writes_out_the_defaults():
    assert to_dict(get_config(CONFIGS / "base.py")) == to_dict(default_config())
