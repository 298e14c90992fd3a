"""Reads the cost of a compiled TPU program from its text.

The TPU compiler annotates the operations that it schedules with `estimated_cycles` from its
cost model. Their sum over the program, with the bodies of loops multiplied by their trip
counts, estimates the time of a step. The sum is not a measurement: operations without the
annotation (scalars, copies during other operations, gathers on the SparseCores of v5p and v6e,
waiting for another chip) count as zero. Collectives and Pallas kernels have no cycles either;
`bert_jax.tpu.estimate` computes their time from the sizes and costs that this module reads.

The text is not an interface: new releases of libtpu write other lines. An operation that is
overlooked would make a program look faster, so what is not understood is an error: a line without
an operation, a matrix product or a large result without cycles, a collective of an unknown kind,
and one that no operation of the program runs.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

from bert_jax.tpu.products import OPERATION, is_product, product_flops, shapes_of

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# Bits of an element. The layout rounds small types such as "s4" up to a byte.
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "c64": 64, "c128": 128}

# Opcodes like those of collectives.
_LIKE_COLLECTIVE = re.compile(r"^(all|collective|ragged)-|reduce-scatter")
# Operations that may have a large result and no cycles: they move nothing, or run beside others.
_NO_CYCLES = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "reshape"}
_NO_CYCLES |= {"copy-start", "copy-done", "slice-start", "slice-done", "custom-call"}
_NO_CYCLES |= {"call-start", "call-update", "call-done", "async-start", "async-update"}
# A dynamic-update-slice writes a part of an array in place.
_NO_CYCLES |= {"async-done", "while", "call", "conditional", "opt-barrier", "dynamic-update-slice"}
_LARGE_BYTES = 2**18

_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*(?:e[0-9]m[0-9]\w*)?)\[([0-9,]*)\]")
_OPCODE = re.compile(r"(?:^|[\s)}])([a-z][a-z0-9-]*)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|async_execution_thread)=%?([^\s,]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LIMIT = re.compile(r"[su]32\[\]\S* constant\((\d+)\)")
_OPERAND = re.compile(r"\(%([^\s,)]+)")
_CHANNEL = re.compile(r"channel_id=(\d+)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_KERNEL_COST = re.compile(r'"(flops|transcendentals|bytes_accessed)":"?(\d+)')
# The ways to write groups of devices: {} for one group of all, {{0,1},{2,3}}, [2,2]<=[4] or
# [2,2]<=[2,2]T(1,0), and axes of a mesh, whose devices may be in another order:
# mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}. Part of an axis is written 'b':(1)2.
_LISTED_GROUPS = re.compile(r"replica_groups=\{((?:\{[\d,]+\},?)*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[\d+,(\d+)\]<=\[")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\([^{}]*\))? \{([^{}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective operation, or the start or end of an asynchronous one.

    Attributes:
      key: Equal for the start and the end of one collective.
      phase: `sync` if the program waits for it; `start` or `done` if other operations run in
        between.
      output_bytes: The size of the result on one device.
      group_size: The number of devices in a group; 0 if all devices are one group, and for a
        collective-permute, whose devices send in pairs.
    """

    kind: str
    key: str
    phase: str
    output_bytes: int
    group_size: int


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The cost that a Pallas kernel declares for one call (pl.CostEstimate).

    All fields are 0 if the kernel declares no cost.
    """

    flops: int = 0
    bytes_accessed: int = 0
    transcendentals: int = 0


@dataclasses.dataclass(frozen=True)
class Operation:
    """One scheduled operation of the program.

    Attributes:
      cycles: The compiler's estimate for one execution; 0 if it gives none.
      executions: The number of executions per step: the product of the trip counts of the loops
        around the operation.
      collectives: The collectives that the operation runs, starts or ends; a fusion may have
        several.
      kernel: The cost of a Pallas kernel; None for other operations.
      product_flops: The FLOPs of its matrix products in one execution.
    """

    name: str
    cycles: int
    executions: int
    collectives: tuple[Collective, ...] = ()
    kernel: Kernel | None = None
    product_flops: int = 0

    @property
    def total_cycles(self) -> int:
        return self.cycles * self.executions


def read_operations(text: str) -> list[Operation]:
    """Reads every scheduled operation of a compiled program; a fusion counts as one operation.

    Text that is not understood may raise any exception.
    """
    computations, entry = _computations(text)
    read: set[str] = set()
    operations = list(_walk(computations, entry, 1, read))
    for name in computations.keys() - read:
        if any(_collective(line) for line in computations[name]):
            raise ValueError(f"nothing that was understood runs the collectives of {name}")
    return operations


def total_flops(operations: list[Operation]) -> int:
    """Counts the FLOPs of all products and Pallas kernels of a step on one device."""
    return sum(
        o.executions * (o.product_flops + (o.kernel.flops if o.kernel else 0)) for o in operations
    )


def total_cycles(operations: list[Operation]) -> int:
    return sum(operation.total_cycles for operation in operations)


def collective_bytes(operations: list[Operation]) -> dict[str, dict[str, int]]:
    """Computes the `count` of each kind of collective in a step, and the `bytes` of its results."""
    totals: dict[str, dict[str, int]] = {}
    for operation in operations:
        for collective in operation.collectives:
            if collective.phase != "done":
                total = totals.setdefault(collective.kind, {"count": 0, "bytes": 0})
                total["count"] += operation.executions
                total["bytes"] += collective.output_bytes * operation.executions
    return totals


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Splits a program into the lines of each computation, and finds the name of the entry."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", None
    for line in text.splitlines():
        if lines is None:
            if header := _COMPUTATION.match(line):
                lines = computations[header[2]] = []
                entry = header[2] if header[1] else entry
        elif line == "}" or line.startswith("}, execution_thread="):
            lines = None
        elif line.startswith(" "):
            lines.append(line)
        else:
            # The attributes of some kernels have line breaks.
            lines[-1] += line
    return computations, entry


def _walk(
    computations: dict[str, list[str]], name: str, executions: int, read: set[str]
) -> Iterator[Operation]:
    """Yields the operations of a computation, and adds the names of those it reads to `read`."""
    read.add(name)
    asynchronous: dict[str, tuple[Collective, ...]] = {}
    shapes = shapes_of(computations[name])
    for line in computations[name]:
        match = OPERATION.match(line)
        if not match or not (opcode := _OPCODE.search(match[2])):
            raise ValueError(f"an operation is not understood: {line}")
        rest = match[2]
        called = dict(_CALLED.findall(rest))
        inside = called.get("calls", "") if opcode[1] == "fusion" else ""
        if opcode[1] in ("call-start", "call-update", "call-done"):
            read.update(called.values())
            collectives = _of_call(match, opcode, computations, asynchronous)
        else:
            read.add(inside)
            collectives = _collectives(line, inside, computations)
        cycles = _CYCLES.search(rest)
        flops = product_flops(rest, shapes) if is_product(rest) else 0
        operation = Operation(
            name=match[1],
            cycles=int(cycles[1]) if cycles else 0,
            executions=executions,
            collectives=collectives,
            kernel=_kernel(rest),
            product_flops=flops + (_flops_inside(computations, inside) if inside else 0),
        )
        if not cycles and not collectives:
            if inside:
                # Gathers and scatters are custom fusions, which may run on a SparseCore.
                may_lack = "kind=kCustom" in rest
            else:
                is_small = _bytes(rest[: opcode.start(1)]) < _LARGE_BYTES
                may_lack = is_small or opcode[1] in _NO_CYCLES
            if operation.product_flops or not may_lack:
                raise ValueError(f"{match[1]} has no cycles: {rest}"[:200])
        yield operation
        if opcode[1] == "while":
            # The loop counts from 0 to the constant in its condition.
            limits = _LIMIT.findall("\n".join(computations[called["condition"]]))
            times = max(map(int, limits), default=1)
            yield from _walk(computations, called["body"], executions * times, read)
        elif opcode[1] in ("call", "async-start"):
            for key in ("to_apply", "calls"):
                if key in called and called[key] in computations:
                    yield from _walk(computations, called[key], executions, read)
        elif opcode[1] == "conditional" and (branches := _BRANCHES.search(rest)):
            # Only one branch runs: assume the costliest.
            names = [branch.strip().lstrip("%") for branch in branches[1].split(",")]
            walks = [list(_walk(computations, branch, executions, read)) for branch in names]
            yield from max(walks, key=total_cycles)


def _flops_inside(computations: dict[str, list[str]], name: str) -> int:
    """Counts the FLOPs of the products in the computation of a fusion, and in fusions inside it."""
    lines, flops = computations[name], 0
    shapes = shapes_of(lines)
    for line in lines:
        if is_product(line):
            flops += product_flops(OPERATION.match(line)[2], shapes)
        elif " fusion(" in line:
            flops += _flops_inside(computations, dict(_CALLED.findall(line))["calls"])
    return flops


def _collectives(
    line: str, inside: str, computations: dict[str, list[str]]
) -> tuple[Collective, ...]:
    """Finds the collectives of an operation, or of the computation `inside` a fusion."""
    if not inside:
        collective = _collective(line)
        return (collective,) if collective else ()
    lines = computations[inside]
    found = []
    for inner in lines:
        if not (collective := _collective(inner)):
            continue
        name = OPERATION.match(inner)[1]
        used_by = [other for other in lines if re.search(rf"%{re.escape(name)}[,)]", other)]
        targets = {match[1] for other in used_by if (match := _TARGET.search(other))}
        if "AsyncCollectiveStart" in targets:
            phase = "start"
        elif "AsyncCollectiveDone" in targets:
            phase = "done"
        elif inside.startswith("async_collective_fusion"):
            # This fusion runs while the collective does; other operations start and end it.
            continue
        else:
            phase = "sync"
        if inside.startswith("all-reduce-scatter"):
            # A fusion of all-reduce and slice: each device keeps its part of the sum.
            collective = dataclasses.replace(
                collective,
                kind="reduce-scatter",
                output_bytes=collective.output_bytes // max(1, collective.group_size),
            )
        found.append(dataclasses.replace(collective, phase=phase))
    return tuple(found)


def _of_call(
    match: re.Match[str],
    opcode: re.Match[str],
    computations: dict[str, list[str]],
    calls: dict[str, tuple[Collective, ...]],
) -> tuple[Collective, ...]:
    """Finds the collectives that an asynchronous call starts or ends, as on a SparseCore.

    Args:
      match, opcode: The operation, and its opcode in the second group of `match`.
      calls: The collectives of each call so far, by the names of its operations; gets this one.
    """
    name, rest = match[1], match[2]
    if opcode[1] == "call-start":
        lines = computations[dict(_CALLED.findall(rest))["to_apply"]]
        found = [collective for line in lines if (collective := _collective(line))]
        calls[name] = tuple(
            dataclasses.replace(collective, key=f"{name} {number}", phase="start")
            for number, collective in enumerate(found)
        )
        # A call without operands begins with the update that brings them.
        return () if "call-start()" in rest else calls[name]
    calls[name] = calls[_OPERAND.search(rest[opcode.start(1) :])[1]]
    phase = "start" if opcode[1] == "call-update" else "done"
    return tuple(dataclasses.replace(collective, phase=phase) for collective in calls[name])


def _collective(line: str) -> Collective | None:
    """Parses the collective that a line runs, starts or ends; None for other operations."""
    match = OPERATION.match(line)
    opcode = _OPCODE.search(match[2]) if match else None
    if not opcode:
        return None
    kind, _, phase = opcode[1].rpartition("-")
    if phase not in ("start", "done"):
        kind, phase = opcode[1], "sync"
    if kind not in COLLECTIVES:
        if _LIKE_COLLECTIVE.search(opcode[1]):
            raise ValueError(f"the collective {opcode[1]} is not understood")
        return None
    rest = match[2]
    key, output_bytes = match[1], _bytes(rest[: opcode.start(1)])
    if phase == "done":
        key = _OPERAND.search(rest[opcode.start(1) :])[1]
    elif phase == "start" and kind in ("all-gather", "collective-permute"):
        # A tuple of the operand, the result and semaphores, which have no size.
        output_bytes = _bytes(_elements(rest[: opcode.start(1)])[1])
    elif phase == "sync" and (channel := _CHANNEL.search(rest)):
        key = f"channel {channel[1]}"
    # The end of a collective repeats nothing of its start.
    group_size = 0 if phase == "done" else _group_size(rest)
    return Collective(kind, key, phase, output_bytes, group_size)


def _elements(shape: str) -> list[str]:
    """Splits a tuple's shape into its outermost elements."""
    parts, depth = [""], 0
    for letter in shape.strip()[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _group_size(rest: str) -> int:
    """Returns the number of devices in a group of a collective; see `Collective.group_size`."""
    if listed := _LISTED_GROUPS.search(rest):
        sizes = {group.count(",") + 1 for group in re.findall(r"\{([\d,]+)\}", listed[1])}
        if len(sizes) < 2:
            return max(sizes, default=0)
    elif iota := _IOTA_GROUPS.search(rest):
        return int(iota[1])
    elif mesh := _MESH_GROUPS.search(rest):
        lengths = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
        axes = _MESH_AXIS.findall(mesh[2])
        if axes and all(axis in lengths for axis, _ in axes):
            return math.prod(int(part or lengths[axis]) for axis, part in axes)
    elif "source_target_pairs={{" in rest:
        return 0
    # Without the groups, the bandwidth is unknown.
    raise ValueError(f"the groups of a collective are not understood: {rest}")


def _kernel(rest: str) -> Kernel | None:
    target = _TARGET.search(rest)
    if not target or target[1] != "tpu_custom_call":
        return None
    cost = rest.partition('"cost_estimate":{')[2].partition("}")[0]
    return Kernel(**{key: int(value) for key, value in _KERNEL_COST.findall(cost)})


def _bytes(shapes: str) -> int:
    total = 0
    for kind, dimensions in _ARRAY.findall(shapes):
        bits = _BITS.get(kind) or int(re.sub(r"^\D+", "", kind.split("e")[0]) or 0)
        elements = math.prod(int(size) for size in dimensions.split(",") if size)
        total += elements * max(bits, 8) // 8
    return total
