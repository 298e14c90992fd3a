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
    {"training", "heads"},
    {"interop", "reports"},
    {"pretraining", "inference"},
    {"finetuning"},
    {"commands"},
    {"tpu"},
    {"studies"},
)
# TensorFlow: the input pipeline, texts of TensorFlow Datasets, and the Google-checkpoint reader.
TENSORFLOW_IN = ("base/lean_tensorflow.py", "text/tfds.py")


def imports(path):
    """Returns every module imported anywhere in a file, also inside functions.

    Imports under `if TYPE_CHECKING:` are left out.
    """
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
            yield node.module


def _is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


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


def test_a_run_imports_no_preparation_formats_or_reports():
    """The commands bring them. Imports inside functions count too, but not those for types."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    # The public functions import what they need when they are called.
    loaded = {"bert_jax"}
    found = {name for name in paths if name.startswith("bert_jax.pretraining.")}
    while found:
        loaded |= found
        found = {module for name in found for module in imports(paths[name])} & paths.keys()
        found -= loaded
    folders = {name.split(".")[1] for name in loaded - {"bert_jax"}}
    assert not folders & {
        "commands",
        "finetuning",
        "inference",
        "reports",
        "studies",
        "tasks",
        "tpu",
    }
    needed = {
        # The items of `data.input`, and the weights of sources.
        "text": {"named_sources"},
        "store": {"checked_files", "manifest", "part", "token_store"},
        # A model as a plain record, and the names of families.
        "interop": {"embedding", "families", "pretrained", "weights"},
    }
    for folder, modules in needed.items():
        prefix = f"bert_jax.{folder}."
        found = {name.removeprefix(prefix) for name in loaded if name.startswith(prefix)}
        assert found <= modules, f"a run must not import {folder}.{found - modules}"
    assert "bert_jax.tokenizers.training" not in loaded


def test_only_commands_import_where_they_need_something():
    """Elsewhere, an import inside a function would hide what a module needs."""
    # They check flags or wait for a process before they load JAX or TensorFlow.
    late = {"config/cli.py", "batches/stream.py", "interop/google.py", "text/tfds.py"}
    for path in FILES:
        is_command = path.parent == PACKAGE or part_of(path) == "commands"
        if is_command or path.relative_to(PACKAGE).as_posix() in late:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                hidden = [x for x in ast.walk(node) if isinstance(x, ast.ImportFrom)]
                assert not [x.module for x in hidden if x.module.startswith("bert_jax")], path


def test_nothing_stored_is_executed_and_tensorflow_is_imported_in_two_places():
    for path in FILES:
        modules = {module.split(".")[0] for module in imports(path)}
        if path.relative_to(PACKAGE).as_posix() not in TENSORFLOW_IN:
            assert not modules & {"tensorflow", "tensorflow_datasets"}, path
        assert not modules & {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve"}, path
        assert "allow_pickle=True" not in path.read_text(), path


def test_no_two_classes_have_one_name():
    files = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert files.setdefault(node.name, path) == path, node.name


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
