"""Checks of the folders and of the coding rules in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bert_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# The folders of the package, from the bottom up. A folder imports only from the rows below its own;
# the modules beside them are the commands and the public functions.
FOLDERS = (
    {"base"},
    {"models", "parallel", "text", "tokenizers"},
    {"config", "objectives"},
    {"store"},
    {"batches", "tasks"},
    {"training"},
    {"interop", "reports"},
    {"pretraining", "inference"},
    {"finetuning"},
    {"tpu"},
    {"studies"},
)
# TensorFlow: the input pipeline, texts of TensorFlow Datasets, and the Google-checkpoint reader.
TENSORFLOW_IN = ("base/lean_tensorflow.py", "text/tfds.py")


def imports(path):
    """Returns every module imported anywhere in a file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
            yield node.module


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def row_of(part):
    (row,) = [i for i, folders in enumerate(FOLDERS) if part in folders] or [len(FOLDERS)]
    return row


def test_every_folder_has_one_row():
    listed = [folder for folders in FOLDERS for folder in folders]
    assert sorted(listed) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def test_only_commands_stand_beside_the_folders():
    for path in PACKAGE.glob("*.py"):
        is_command = 'if __name__ == "__main__":' in path.read_text()
        assert is_command or path.name == "__init__.py", f"{path.name} belongs in a folder"


def test_modules_import_only_from_lower_rows():
    forbidden = {"ml_collections", "absl", "etils", "orbax", "tensorflow", "optax"}
    for path in FILES:
        part = part_of(path)
        for module in imports(path):
            first, *others = module.split(".")
            if first == "bert_jax" and others and others[0] != part:
                assert row_of(others[0]) < row_of(part), f"{path} must not import {module}"
            if part in ("models", "objectives"):
                assert first not in forbidden, f"{path} must not import {module}"


def test_a_run_from_a_finished_store_needs_no_text_converters_or_reports():
    """What it needs stands apart: imports inside functions count too."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    # The public functions import what they need when they are called.
    loaded, found = set(), {"bert_jax.pretraining.run", "bert_jax.pretraining.build"}
    while found:
        loaded |= found
        modules = {module for name in found for module in imports(paths[name])}
        found = (modules & paths.keys()) - loaded - {"bert_jax"}
    folders = {name.split(".")[1] for name in loaded}
    assert not folders & {"reports", "inference", "tasks", "finetuning", "tpu", "studies"}
    assert {
        name for name in loaded if name.startswith(("bert_jax.interop.", "bert_jax.text."))
    } == {
        "bert_jax.interop.weights",
        "bert_jax.text.named_sources",
    }
    assert "bert_jax.store.preparation" not in loaded


def test_nothing_stored_is_executed_and_tensorflow_is_imported_in_two_places():
    for path in FILES:
        modules = {module.split(".")[0] for module in imports(path)}
        if path.relative_to(PACKAGE).as_posix() not in TENSORFLOW_IN:
            assert not modules & {"tensorflow", "tensorflow_datasets"}, path
        assert not modules & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}, path
        assert "allow_pickle=True" not in path.read_text(), path


def test_every_extra_that_is_named_can_be_installed():
    """Checks extras such as `.[tpu]` in messages and documentation."""
    setup = ast.parse((ROOT / "setup.py").read_text())
    (extras,) = [
        {key.value for key in keyword.value.keys}
        for keyword in ast.walk(setup)
        if isinstance(keyword, ast.keyword) and keyword.arg == "extras_require"
    ]
    folders = [path for name in ("launch", "docs") for path in (ROOT / name).rglob("*")]
    texts = [ROOT / "README.md", *FILES, *folders]
    named = {
        extra
        for path in texts
        if path.is_file() and path.suffix not in (".png", ".pyc")
        for found in re.findall(r"(?:-e|--editable) ['\"]?\S*[.}]\[([\w,]+)\]", path.read_text())
        for extra in found.split(",")
    }
    assert {"test", "tpu", "gcs"} <= named <= extras
