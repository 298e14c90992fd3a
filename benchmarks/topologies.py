"""Compiles BERT-large for TPU slices and prints the figures of docs/hardware.md.

    python benchmarks/topologies.py --directory=/tmp/topologies
    python benchmarks/topologies.py --directory=/tmp/topologies --only=v5e -- --config.remat=dots

Each row is one run of `bert_jax.compile_check`, which may take minutes and writes a JSON file into
the directory. Rows whose file exists are not compiled again, so you can stop the command and run it
again. Flags after `--` are passed to every run.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

SHARDINGS = {
    "auto": [],
    "fsdp of 16": ["--config.sharding=fsdp", "--config.mesh.fsdp=16"],
    "dp": ["--config.sharding=dp"],
}
ROWS = [
    (f"{topology} {sharding}", topology, flags)
    for topology in ("v5e:16x16", "v5p:8x8x8", "v6e:16x16")
    for sharding, flags in SHARDINGS.items()
]
COLUMNS = ("what", "chips", "batch per chip", "HBM per chip, GiB", "of", "collectives, ms")
COLUMNS += ("waited for, ms", "step, ms", "sequences/s per chip", "MFU", "compiled in, s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, required=True, help="directory of the JSON files")
    parser.add_argument("--only", default="", help="compile only rows whose name contains this")
    parser.add_argument(
        "--batch_size_per_chip",
        default="64",
        help="sequences of 128 tokens per chip",
    )
    parser.add_argument("rest", nargs="*", help="flags of compile_check, after --")
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    size = f"--batch_size_per_chip={args.batch_size_per_chip}"
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name, topology, flags in ROWS:
        if args.only in name:
            found = check(name, topology, [size, *flags, *args.rest], args.directory)
            print(f"| {' | '.join(cells(name, found))} |", flush=True)


def check(name: str, topology: str, flags: list[str], directory: Path) -> dict:
    """Returns the results of one compilation, or its `error`."""
    output = directory / f"{name.replace(' ', '_').replace(':', '_')}.json"
    if not output.exists():
        command = [sys.executable, "-m", "bert_jax.compile_check", "--config=configs/large.py"]
        command += [f"--topology={topology}", f"--output={output}", *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        if not output.exists():
            log = output.with_suffix(".err")
            log.write_text(done.stderr)
            one_line = done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
            return {"error": done.stderr.strip() if one_line else f"failed, see {log}"}
    return json.loads(output.read_text())


def cells(name: str, found: dict) -> list[str]:
    if "error" in found:
        return [name, found["error"], *[""] * (len(COLUMNS) - 2)]
    memory = (found["hbm_total_bytes"] / 2**30, found["hbm_limit_bytes"] / 2**30)
    row = [name, f"{found['chips']:,}", f"{found['batch_size_per_chip']:g}"]
    row += [f"{gib:.1f}" for gib in memory]
    if not found["fits"]:
        row += ["", "", "does not fit", "", ""]
    else:
        estimate = found["estimate"]
        row += [f"{1e3 * estimate['collective_seconds']:.1f}"]
        row += [f"{1e3 * estimate['exposed_collective_seconds']:.1f}"]
        row += [f"{1e3 * found['estimated_step_seconds']:.1f}"]
        row += [f"{found['estimated_sequences_per_second_per_chip']:,.0f}"]
        row += [f"{found['estimated_mfu']:.1%}"]
    return [*row, f"{found['compile_seconds']:.0f}"]


if __name__ == "__main__":
    main()
