"""Uploads exported models to the Hugging Face Hub."""

import re
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.generator import PARTS
from bert_jax.interop.pretrained import TRAINING

_PROBLEMS = {
    401: "the Hub does not accept the token",
    403: "the token may not write to this repository",
}


def check_push(repository: str) -> None:
    """Checks everything about an upload that can be checked before the model is converted.

    Raises:
      UserError: The name is not OWNER/NAME, the package is missing, or there is no token.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UserError(f"--push_to_hub is {repository!r}; it must be OWNER/NAME")
    if not _library().get_token():
        raise UserError(
            f"--push_to_hub is {repository}, but there is no token for the Hugging Face Hub: set "
            "HF_TOKEN, or run `hf auth login`"
        )


def push(folder: epath.PathLike, repository: str, private: bool | None) -> list[str]:
    """Uploads an exported model, as one commit, to a repository that is created if need be.

    The two parts of a model with a generator go to OWNER/NAME-discriminator and
    OWNER/NAME-generator. The file TRAINING, which names local paths, stays here; the model card
    has its content without them.

    Args:
      folder: The directory of the export.
      repository: OWNER/NAME.
      private: Whether a new repository is private; None leaves it to the owner's settings.

    Returns:
      The addresses of the repositories.

    Raises:
      UserError: The Hub refused the upload or cannot be reached.
    """
    api, urls = _library().HfApi(library_name="bert_jax"), []
    with files.local_copy(folder) as local:
        for part in [part for part in PARTS if (local / part).exists()] or [""]:
            name = f"{repository}-{part}" if part else repository
            try:
                urls.append(_upload(api, local / part, name, private))
            except Exception as error:
                status = getattr(getattr(error, "response", None), "status_code", None)
                problem = _PROBLEMS.get(status) or files.storage_problem(error)
                if not problem:
                    raise
                raise UserError(
                    f"{epath.Path(folder) / part} is written but not uploaded to {name}: "
                    f"{problem}; `hf upload {name} {epath.Path(folder) / part} "
                    f"--exclude {TRAINING}` tries again"
                ) from error
    return urls


def _upload(api: Any, path: Path, repository: str, private: bool | None) -> str:
    url = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(
        repo_id=repository,
        folder_path=path,
        ignore_patterns=[TRAINING],
        commit_message="Upload the model",
    )
    return str(url)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            "the package for --push_to_hub is missing: pip install -e '.[hub]' (huggingface_hub)"
        ) from None
    return huggingface_hub
