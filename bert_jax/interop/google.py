"""Reads checkpoints of google-research/bert: bert_model.ckpt, bert_config.json, vocab.txt.

TensorFlow is imported only when a checkpoint is opened, because the import takes seconds.
"""

from functools import partial
from pathlib import Path

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.families import DEFAULT, load_family
from bert_jax.interop.family import Family, Tensor
from bert_jax.interop.model_keys import read_model_keys, read_terms
from bert_jax.interop.names import collect_weights, foreign_names
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tokenizer_files import VOCABULARY_FILE, read_google_vocabulary
from bert_jax.interop.weights import ENCODER, expected_shapes

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
# Variables of run_pretraining.py that do not belong to the model: Adam's moments and the step.
_TRAINING_VARIABLES = ("/adam_m", "/adam_v", "global_step")


def is_google(path: Path) -> bool:
    """Returns whether a path is a checkpoint's prefix or a directory with a bert_config.json."""
    return _index(path).is_file() or (path / CONFIG).is_file()


def read_google(
    path: Path, family_name: str = "", with_weights: bool = True, lowercase: bool | None = None
) -> Pretrained:
    """Reads a TF1 checkpoint, given by its directory or its prefix; see `formats.read`."""
    prefix = path if _index(path).is_file() else _only_checkpoint(path)
    family_name, file = family_name or DEFAULT, prefix.parent / CONFIG
    family = _google_family(family_name)
    model = read_model_keys(files.read_json(file), family.config_keys, file)
    terms = read_terms({}, family, model["causal"])
    pretrained = Pretrained(str(path), model, family=family_name, terms=terms)
    if not with_weights:
        return pretrained
    shape = pretrained.model_config
    names = foreign_names(family.names, "google", shape.num_groups)
    found = collect_weights(
        _checkpoint_tensors(prefix), names, expected_shapes(shape, terms), family, prefix
    )
    pretrained.weights, pretrained.warnings = found
    if (vocabulary := prefix.parent / VOCABULARY_FILE).exists():
        pretrained.tokenizer = read_google_vocabulary(vocabulary, lowercase)
    return pretrained


def _google_family(name: str) -> Family:
    family = load_family(name)
    encoder = [names for names in family.names if names.ours.startswith(ENCODER)]
    if not all(names.google for names in encoder):
        raise UserError(
            f"Google's checkpoints of the family {name} cannot be read: give the model as a "
            "Hugging Face directory"
        )
    return family


def _checkpoint_tensors(prefix: Path) -> dict[str, Tensor]:
    from bert_jax.base.lean_tensorflow import tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {
        name: Tensor(tuple(shape), partial(reader.get_tensor, name))
        for name, shape in sorted(reader.get_variable_to_shape_map().items())
        if not name.endswith(_TRAINING_VARIABLES)
    }


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _only_checkpoint(directory: Path) -> Path:
    prefixes = [path.with_suffix("") for path in sorted(directory.glob("*.index"))]
    named = [prefix for prefix in prefixes if prefix.name == CHECKPOINT]
    if len(named or prefixes) != 1:
        names = ", ".join(prefix.name for prefix in prefixes) or "none"
        raise UserError(
            f"{directory} must hold one checkpoint, such as {CHECKPOINT}.index, but has {names}; "
            f"to choose one of several, give {directory / 'NAME'}"
        )
    return (named or prefixes)[0]
