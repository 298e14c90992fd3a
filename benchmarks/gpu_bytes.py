"""Lists what the kernels of a train step read and write on an H100, on a machine without a GPU.

    pip install --no-deps --target=DIR jax-cuda12-pjrt==VERSION jax-cuda12-plugin==VERSION \\
        nvidia-cuda-nvcc-cu12
    PYTHONPATH=$PWD:DIR PATH=DIR/nvidia/cuda_nvcc/bin:$PATH python benchmarks/gpu_bytes.py \\
        --config=configs/large.py --stage=2 --batch_size=64 --layers=3

VERSION is that of jax. XLA compiles for the description of a card below. Nothing runs and nothing
is tuned: all products are calls of cuBLAS, of which a card may choose some as Triton kernels. An
operand counts once for each kernel that reads it, with all its elements; what is in a cache, and
gathers of a few rows, cost less. The kernels of the middle layer are listed and added up, without
those of the optimizer, and those of the whole step are added up.
"""

import argparse
import collections
import math
import os
import re
import time

# From openxla/xla, xla/backends/gpu/target_config/specs/h100_sxm.txtpb, shortened.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 device_address_bits: 64
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  name: "NVIDIA H100 80GB HBM3" driver_version: "13.0.0" runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
ITEM_BYTES = {"pred": 1, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}
# Scratch memory of cuBLAS, s8, is not listed.
ARRAY = re.compile(rf"\b({'|'.join(ITEM_BYTES)})\[([0-9,]*)\]")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*?)\)(.*)$")
# What makes no kernel.
FREE = ("parameter", "constant", "bitcast", "get-tuple-element", "tuple")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", required=True)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--at_least_mb", type=float, default=30, help="leave out the others")
    parser.add_argument("--text", help="a file for the compiled program")
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    text = compile_step(args)
    if args.text:
        with open(args.text, "w") as file:
            file.write(text)
    kernels = read_kernels(text)
    layer = f"layer_{args.layers // 2}/"
    print("| MB read | MB written | written | of | kernel |\n|---:|---:|---|---|---|")
    for kernel in kernels:
        is_large = kernel["read"] + kernel["written"] >= args.at_least_mb * 1e6
        if layer in kernel["source"] and is_large:
            source = kernel["source"].partition(layer)[2]
            direction = "backward" if "transpose(" in kernel["source"] else "forward"
            print(
                f"| {kernel['read'] / 1e6:.0f} | {kernel['written'] / 1e6:.0f} "
                f"| {kernel['arrays']} | {direction} {source} | {kernel['name']} |"
            )
    totals = collections.Counter()
    for kernel in kernels:
        for part in ("the step", layer[:-1] if layer in kernel["source"] else ""):
            for kind in (kernel["kind"], "all"):
                totals[part, kind, "read"] += kernel["read"] / 1e9
                totals[part, kind, "written"] += kernel["written"] / 1e9
    for part in (layer[:-1], "the step"):
        for kind in ("product", "Pallas", "other", "all"):
            read, written = totals[part, kind, "read"], totals[part, kind, "written"]
            print(f"{part}, {kind}: {read:.2f} GB read, {written:.2f} GB written")
    print(f"{len(kernels)} kernels, {len({kernel['body'] for kernel in kernels})} different ones")


def compile_step(args: argparse.Namespace) -> str:
    """Returns the compiled program, and prints times and memory."""
    # XLA reads its flags when JAX is imported.
    from jax.experimental import topologies

    import bert_jax
    from bert_jax.pretraining.build import make_trainer
    from bert_jax.training.stages import numbered_stage

    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    config = bert_jax.load_config(args.config)
    with config.unlocked():
        config.train.batch_size = args.batch_size
        config.model.num_hidden_layers = args.layers
    trainer, stage = make_trainer(config, topology.devices), numbered_stage(config, args.stage)
    trainer = trainer.with_model(stage.model_keys)
    arguments = trainer.abstract_state(), trainer.abstract_batch(stage), trainer.abstract_frozen()
    started = time.process_time()
    lowered = trainer.compiled_train_step.lower(*arguments)
    lowered_at = time.process_time()
    compiled = lowered.compile()
    finished = time.process_time()
    memory = compiled.memory_analysis()
    print(
        f"CPU seconds: {lowered_at - started:.1f} to lower, {finished - lowered_at:.1f} to compile"
    )
    print(
        f"GiB: {memory.argument_size_in_bytes / 2**30:.2f} of state and batch, "
        f"{memory.temp_size_in_bytes / 2**30:.2f} of other arrays"
    )
    return compiled.as_text()


def read_kernels(text: str) -> list[dict]:
    """Reads the operations of the entry computation that are kernels."""
    bodies, name = collections.defaultdict(list), ""
    for line in text.splitlines():
        if line.endswith("{") and " = " not in line:
            name = line.split()[0].lstrip("%") if not line.startswith("ENTRY") else "ENTRY"
        elif " = " in line:
            bodies[name].append(line)
    found = (INSTRUCTION.match(re.sub(r"/\*.*?\*/", "", line)) for line in bodies["ENTRY"])
    operations = {match[1]: match for match in found if match}

    def origin(name: str) -> tuple[str, str]:
        """Returns the operation that wrote an operand, and the operand's type."""
        of = type_ = ""
        while True:
            operation = operations[name]
            type_ = type_ or operation[2]
            if operation[3] not in ("bitcast", "get-tuple-element"):
                return name + of, type_
            if operation[3] == "get-tuple-element":
                of = re.search(r"index=(\d+)", operation[5])[1]
            name = re.search(r"%([^\s,)]+)", operation[4])[1]

    kernels = []
    for name, type_, kind, operands, rest in (match.groups() for match in operations.values()):
        if kind in FREE:
            continue
        read = dict(origin(operand) for operand in re.findall(r"%([^\s,)]+)", operands))
        source = re.search(r'op_name="([^"]*)"', rest)
        called = re.search(r"calls=%([^\s,]+)", rest)
        is_product, is_pallas = "__cublas" in rest, "xla.gpu.triton" in rest
        kernels.append(
            {
                "name": name,
                "kind": "product" if is_product else "Pallas" if is_pallas else "other",
                "source": source[1] if source else "",
                "read": sum(map(num_bytes, read.values())),
                "written": num_bytes(type_),
                "arrays": " ".join(f"{dtype}[{shape}]" for dtype, shape in ARRAY.findall(type_)),
                "body": without_names(bodies[called[1]] if called else [f"{type_} {kind} {rest}"]),
            }
        )
    return kernels


def num_bytes(type_: str) -> int:
    return sum(
        ITEM_BYTES[dtype] * math.prod(int(size) for size in shape.split(",") if size)
        for dtype, shape in ARRAY.findall(type_)
    )


def without_names(body: list[str]) -> str:
    """Returns the text of a computation without the names of its operations."""
    names: dict[str, str] = {}
    text = "\n".join(re.sub(r", metadata=\{[^}]*\}", "", line) for line in body)
    return re.sub(r"%[\w.-]+", lambda match: names.setdefault(match[0], f"%{len(names)}"), text)


if __name__ == "__main__":
    main()
