"""Records what `torch.save` writes, for tests/interop/test_torch_file.py.

Run beside itself, where torch is installed (recorded with torch 2.13):

    python tests/golden/record_torch_files.py

`torch_zip.bin`, `torch_zip_protocol_4.bin` and `torch_legacy.bin` hold the same
state dict; `torch_expected.npz` its values, bfloat16 as float32, and the dtypes.
"""

from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent


def state_dict() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5))
    layer.register_buffer("position_ids", torch.arange(7).expand((1, -1)))
    state = layer.state_dict()  # With _metadata, as every saved model's.
    state["parameter"] = torch.nn.Parameter(torch.randn(2, 3))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        state[str(dtype).removeprefix("torch.")] = torch.randn(2, 3).to(dtype)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        values = torch.randint(-128, 128, (3, 2)) if dtype.is_signed else torch.arange(250, 256)
        state[str(dtype).removeprefix("torch.")] = values.to(dtype)
    state["bool"] = torch.tensor([True, False, True])
    shared = torch.randn(4, 6)
    state["whole"], state["tied"] = shared, shared
    state["transposed"] = shared.t()
    state["row"] = shared[2]
    state["column"] = shared[:, 3]
    state["every second from the middle"] = shared[1::2, 2:5:2]
    state["axes exchanged"] = torch.randn(2, 3, 4).permute(2, 0, 1)
    state["bfloat16 view"] = torch.randn(6).to(torch.bfloat16)[1:4]
    state["no axes"] = torch.tensor(3.25)
    state["no axes, offset"] = shared[3, 5]
    state["no values"] = torch.zeros(0, 4)
    state["repeated"] = torch.tensor([1.5]).expand(2, 3)
    return state


def main() -> None:
    state = state_dict()
    torch.save(state, HERE / "torch_zip.bin")
    torch.save(state, HERE / "torch_zip_protocol_4.bin", pickle_protocol=4)
    torch.save(state, HERE / "torch_legacy.bin", _use_new_zipfile_serialization=False)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in state.values()]
    values = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
        for name, tensor in state.items()
    }
    np.savez_compressed(
        HERE / "torch_expected.npz",
        __names__=np.array(list(state)),
        __dtypes__=np.array(dtypes),
        **values,
    )


if __name__ == "__main__":
    main()
