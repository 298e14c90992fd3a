"""Reads models in any format, which it detects, and writes them."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop import generator
from bert_jax.interop.embedding import TERMS
from bert_jax.interop.google import is_google, read_google
from bert_jax.interop.huggingface import is_huggingface, read_huggingface, write_huggingface
from bert_jax.interop.multi_vector import read_multi_vector, write_multi_vector
from bert_jax.interop.native import is_native, read_native, write_native
from bert_jax.interop.pretrained import PROJECTION, QUERY_WEIGHTS, Pretrained
from bert_jax.interop.sentence_transformers import (
    encoder_folder,
    read_cross_encoder,
    read_embedding,
)
from bert_jax.interop.sparse import read_sparse, write_sparse
from bert_jax.interop.weights import ENCODER
from bert_jax.training.workdir import CHECKPOINTS, CONFIG, checkpoint_folder, is_finetuning

_UNFINISHED = "unfinished_conversion"
# Lists what is moved from there to the directory itself.
_PARTS = "parts.json"
_ADAPTER = "adapter_config.json"
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".bin", ".index", ".metadata")
# The ends of the names of folders with modules of sentence-transformers.
_FOLDERS = ("Transformer/", "Pooling/", "Dense/", "Mask/", "Embedding/", "IDF/", "Normalize/")


def read(
    path: str | Path, lowercase: bool | None = None, step: int | None = None, family: str = ""
) -> Pretrained:
    """Reads a model of any known kind.

    Args:
      path: A work directory of bert_jax or one of its checkpoints; a directory of
        `transformers`, or one with the directories `generator.PARTS`; a TF1 checkpoint of
        google-research/bert or its directory.
      lowercase: Whether the vocabulary of a Google checkpoint is uncased; None to guess from
        its tokens.
      step: The step of a work directory's checkpoint; None for the best or newest.
      family: The family of the model, as `config.family`; by default the one its config names.
    """
    path = files.checked_path(path, "the model to read")
    if step is not None:
        path = checkpoint_folder(path, step) / str(step)
    if files.is_remote(path):
        return _read_remote(_directory_or_prefix(path), lowercase, family)
    return _read(_directory_or_prefix(path.absolute()), lowercase, family)


def read_pretrained(path: str | Path, step: int | None = None) -> Pretrained:
    """Reads a model without rows beyond its vocabulary; see `read`."""
    pretrained = read(path, step=step)
    pretrained.cut_padding()
    return pretrained


def describe(path: str | Path) -> Pretrained:
    """Reads a model of any known kind without its weights and its tokenizer; see `read`.

    The values of `model` are those of the config, from which the weights may differ.
    """
    path = files.checked_path(path, "the model to read")
    path = _directory_or_prefix(path if files.is_remote(path) else path.absolute())
    return _read(path, with_weights=False)


def _read_remote(path: epath.Path, lowercase: bool | None, family: str) -> Pretrained:
    """Reads a work directory in place, and other kinds from a temporary copy."""
    if is_native(path):
        return _read(path, lowercase, family)
    # A directory, or the prefix of a checkpoint's files.
    names = files.list_files(path)
    folder, prefix = (path, "") if names else (path.parent, path.name)
    # The folder may hold unrelated files.
    names = [
        name
        for name in names or files.list_files(folder)
        if ("/" not in name or any(end in name for end in _FOLDERS))
        and (name.endswith(_SUFFIXES) or ".data-" in name)
    ]
    # A folder may hold the same weights twice.
    twice = {name.rpartition("/")[0] for name in names if name.endswith(".safetensors")}
    names = [n for n in names if not (n.endswith(".bin") and n.rpartition("/")[0] in twice)]
    with files.local_copy(folder, names) as local:
        try:
            pretrained = _read(local / prefix, lowercase, family)
        except UserError as error:
            raise UserError(str(error).replace(str(local), str(folder))) from error
    warnings = [warning.replace(str(local), str(folder)) for warning in pretrained.warnings]
    return dataclasses.replace(pretrained, source=str(path), warnings=warnings)


def _read(
    path: Path | epath.Path,
    lowercase: bool | None = None,
    family: str = "",
    with_weights: bool = True,
) -> Pretrained:
    if lowercase is not None and (is_native(path) or is_huggingface(path)):
        raise UserError(f"{path} has a setting for lower-casing; leave --lowercase out")
    if is_native(path):
        return read_native(path, family, with_weights)
    with files.naming(path):
        encoder = encoder_folder(path)
        if (encoder / _ADAPTER).exists():
            raise UserError(
                f"{encoder} is an adapter (LoRA) of another model: merge it first, with peft's "
                "merge_and_unload, and give the directory of the merged model"
            )
        if is_huggingface(encoder):
            pretrained = read_huggingface(encoder, family, with_weights)
            pretrained.embedding, unsupported = read_embedding(path)
            pretrained.warnings += unsupported
            kind = pretrained.embedding.kind
            pretrained.terms = TERMS.get(kind, pretrained.terms)
            if kind == "sparse":
                read_sparse(pretrained, path, with_weights)
            elif kind == "multi_vector":
                read_multi_vector(pretrained, path, with_weights)
            if pretrained.is_cross_encoder:
                pretrained.activation, length = read_cross_encoder(path)
                pretrained.embedding = pretrained.embedding._replace(max_length=length)
            return pretrained
        if is_google(path):
            return read_google(path, family, with_weights, lowercase)
        parts = [path / name for name in generator.PARTS]
        if all(map(is_huggingface, parts)):
            return generator.merge(*(read_huggingface(p, family, with_weights) for p in parts))
    if not path.exists():
        raise UserError(
            f"{path} does not exist; give the model's directory or checkpoint, or download it from "
            "the Hugging Face Hub: hf download NAME --local-dir DIR"
        )
    raise UserError(
        f"{path} holds no known model: it must be a work directory of bert_jax with a checkpoint "
        "(of a sweep, that of its best run), a Hugging Face directory (model.safetensors or "
        "pytorch_model.bin), or a Google checkpoint (bert_model.ckpt.index and bert_config.json)"
    )


def write(pretrained: Pretrained, path: str | Path, kind: str) -> None:
    """Writes a model to a directory and empties `pretrained.weights`.

    The config, which completes the model, is written last. On failure, nothing remains.
    """
    kinds = ["huggingface"]
    if pretrained.is_cross_encoder:
        kinds.append("sentence_transformers")
    if pretrained.head and kind not in kinds:
        raise UserError(
            f"{pretrained.source} is fine-tuned; only --to={' or '.join(kinds)} has a class for it"
        )
    if pretrained.embedding.kind == "multi_vector" and kind == "bert_jax":
        raise UserError(
            f"{pretrained.source} is multi_vector; only --to=huggingface or sentence_transformers "
            "has a place for an encoder without heads"
        )
    path = files.checked_path(path, "the directory to write")
    if not files.is_remote(path):
        path = path.resolve()
    # All files are first written to this directory. A killed conversion leaves it behind.
    unfinished = path / _UNFINISHED
    is_new = not path.exists()
    found = list(path.iterdir()) if path.is_dir() else []
    ours = {unfinished.name, *_moved(unfinished)} if unfinished.is_dir() else set()
    if {each.name for each in found} - ours or path.is_file():
        raise UserError(f"{path} exists already; give a new or empty directory")
    try:
        _discard(unfinished)
        unfinished.mkdir(parents=True)
        # orbax writes to object storage itself.
        native = contextlib.nullcontext(unfinished)
        with native if kind == "bert_jax" else files.local_output(unfinished) as directory:
            WRITERS[kind](pretrained, directory)
        parts = sorted(unfinished.iterdir(), key=lambda part: part.name == CONFIG)
        files.write_json(unfinished / _PARTS, {"names": [part.name for part in parts]})
        for part in parts:
            files.move(part, path / part.name)
        files.remove_directory(unfinished)
    except BaseException:
        _discard(unfinished)
        if is_new and not files.is_remote(path):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _moved(unfinished: Path | epath.Path) -> list[str]:
    """Returns the names of what a killed conversion may have moved out of its directory."""
    return files.read_json(unfinished / _PARTS, optional=True).get("names", [])


def _discard(unfinished: Path | epath.Path) -> None:
    """Removes what an unfinished conversion has written, if there was one."""
    for name in _moved(unfinished):
        part = epath.Path(files.inside(unfinished.parent, name, unfinished / _PARTS))
        if part.is_dir():
            part.rmtree()
        else:
            part.unlink(missing_ok=True)
    files.remove_directory(unfinished)


def _write_huggingface(pretrained: Pretrained, path: Path) -> None:
    """Writes a directory, or two for a model with a generator."""
    if pretrained.head and (prompt := pretrained.embedding.prompt):
        pretrained.warnings.append(
            f"its prompt, {prompt!r}, is left out: --to=sentence_transformers has a place for it"
        )
    if pretrained.head or generator.TERM not in pretrained.terms:
        write_huggingface(pretrained, path)
        return
    for name, part in generator.split(pretrained).items():
        (path / name).mkdir()
        write_huggingface(part, path / name)


def _write_sentence_transformers(pretrained: Pretrained, path: Path) -> None:
    """Writes a cross-encoder, or the encoder alone, with the settings of `pretrained.embedding`.

    Of a model with a generator, this is the discriminator's.
    """
    embedding = pretrained.embedding
    if pretrained.is_cross_encoder:
        # A regression was trained to give its number; what no file says is a sigmoid.
        is_regression = is_finetuning(pretrained.training.get("config") or {})
        activation = pretrained.activation or ("identity" if is_regression else "sigmoid")
        scorer = dataclasses.replace(pretrained, activation=activation)
        write_huggingface(scorer, path, embedding._replace(max_length=pretrained.max_length))
        return
    if embedding.pooling is None:
        raise UserError(f"{pretrained.source} does not say how it pools tokens: give --pooling")
    if pretrained.model["num_decoder_layers"]:
        raise UserError(
            f"{pretrained.source} has a decoder, whose states sentence-transformers would pool "
            "instead of the encoder's"
        )
    if generator.TERM in pretrained.terms:
        pretrained = generator.split(pretrained)[generator.DISCRIMINATOR]
    vectors = (pretrained.weights.pop(name, None) for name in (PROJECTION, QUERY_WEIGHTS))
    projection_DxW, query_weights_V = vectors
    terms = TERMS.get(embedding.kind, ())
    kept = (ENCODER, "mlm/") if terms else (ENCODER,)
    for name in [name for name in pretrained.weights if not name.startswith(kept)]:
        del pretrained.weights[name]
    length = min(embedding.max_length or pretrained.max_length, pretrained.max_length)
    embedding = embedding._replace(max_length=length)
    encoder = dataclasses.replace(pretrained, terms=terms)
    write_huggingface(encoder, path, embedding)
    if embedding.kind == "sparse":
        write_sparse(encoder, embedding, query_weights_V, path)
    elif embedding.kind == "multi_vector":
        write_multi_vector(embedding, projection_DxW, path)


WRITERS: dict[str, Callable[[Pretrained, Path], None]] = {
    "bert_jax": write_native,
    "huggingface": _write_huggingface,
    "sentence_transformers": _write_sentence_transformers,
}


def _directory_or_prefix(path: Path | epath.Path) -> Path | epath.Path:
    """Finds the directory or checkpoint prefix that a file belongs to."""
    if path.suffix == ".index" and path.is_file():
        return path.with_suffix("")
    if path.name == CHECKPOINTS:
        return path.parent
    return path.parent if path.is_file() else path
