"""Reads a PyTorch state dict, `pytorch_model.bin`, where torch is installed."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError


def read_torch_file(path: Path) -> dict[str, Any]:
    """Returns the torch tensors of a state dict by name.

    `weights_only` limits the file to tensors and plain values: nothing in it is executed.

    Raises:
      UserError: Torch is not installed, or the file is damaged or not a plain state dict.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{path} can only be read with torch, which is not installed: pip install -e "
            "'.[torch]', or save the model as model.safetensors"
        ) from None
    try:
        with warnings.catch_warnings(action="ignore"):
            # Files from before torch 1.6 are not zip archives and cannot be mapped.
            mmap = zipfile.is_zipfile(path)
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # Arbitrary bytes raise almost anything.
        raise UserError(
            f"{path} is damaged, or holds something other than tensors, which is not loaded "
            "because it could run code"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise UserError(f"{path} is not a state dict, which maps names to tensors")
    return state
