"""Times the attention kernels for GPUs over sizes of their blocks, and prints the best ones.

    python benchmarks/gpu_attention.py [--minutes=5] [--only=large]

Each shape is that of a layer, with random inputs in bfloat16 and rows without padding. The forward
kernel and those of the gradients are timed alone. The last lines are the best tilings:
rows to put before those of `bert_jax.models.gpu_attention._SECOND`. Beside them stand the form that
is the default, attention in XLA as models compute it without the kernels, and cuDNN's attention,
which has no dropout.

TFLOP/s count the products of the pairs of positions that see each other, as is usual: two forward,
five backward. The kernels of the gradients compute the scores twice, so alone they are counted with
four (keys and values) and three (queries). Errors are those of the output and of the gradients of
query, key and value: the largest difference from attention in float32, relative to the largest
value, in two heads of the first row.

The shapes share the minutes; what is not compiled in its share is left out. `--interpret` runs two
blocks of a tiny shape on a CPU, to test this file.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import os
import time

import jax
import jax.numpy as jnp

from bert_jax.models import gpu_attention
from bert_jax.models.dropout import Dropout, dropped, mask_keys
from bert_jax.models.gpu_attention import Call, Form, Tiling
from bert_jax.models.sliced_attention import sliced_attention

# The kernels by the names of their tilings in a `Form`, and the products of a pair of positions.
KERNELS = {
    "forward": (gpu_attention.forward, 2),
    "keys": (gpu_attention.key_gradients, 4),
    "queries": (gpu_attention.query_gradient, 3),
}
PRODUCTS_FORWARD, PRODUCTS = 2, 7

POOL = concurrent.futures.ThreadPoolExecutor(os.cpu_count())


@dataclasses.dataclass(frozen=True)
class Shape:
    """A layer; `texts` sequences of the same length share a row."""

    name: str
    batch: int
    length: int
    heads: int
    depth: int = 64
    window: int | None = None
    rate: float = 0.1
    texts: int = 1

    def __str__(self) -> str:
        window = "" if self.window is None else f", window of {self.window} on each side"
        texts = "" if self.texts == 1 else f", {self.texts} texts a row"
        heads = f"{self.heads} heads of depth {self.depth}, dropout {self.rate}"
        return f"{self.name}, {self.batch} x {self.length}: {heads}{window}{texts}"

    @property
    def kind(self) -> tuple:
        """What a row of the table is for."""
        return self.depth, self.length, self.window is not None

    @property
    def num_pairs(self) -> int:
        """The pairs of positions that see each other, in all rows and heads."""
        length = self.length // self.texts
        reach = length - 1 if self.window is None else min(self.window, length - 1)
        in_text = length * (2 * reach + 1) - reach * (reach + 1)
        return self.batch * self.heads * self.texts * in_text


# Tilings are compared for the first shape of each depth, length and kind of layer.
SHAPES = [
    Shape("large", 64, 512, 16),
    Shape("large", 256, 128, 16),
    Shape("ModernBERT local", 4, 8192, 12, window=64, rate=0.0),
    Shape("ModernBERT global", 4, 8192, 12, rate=0.0),
    Shape("ModernBERT local", 32, 1024, 12, window=64, rate=0.0),
    Shape("ModernBERT global", 32, 1024, 12, rate=0.0),
    Shape("base", 128, 512, 12),
    Shape("base", 512, 128, 12),
    Shape("large", 64, 512, 16, texts=4),
]
TINY = [Shape("tiny", 1, 128, 2, depth=16, window=30)]
# The likely ones first. With other sizes Triton's programs spill registers or repeat products.
TILINGS = [
    Tiling(own, other, warps, stages)
    for stages in (2, 3, 4)
    for own, other, warps in (
        (128, 64, 8),
        (64, 64, 4),
        (128, 64, 4),
        (128, 128, 8),
        (64, 32, 4),
        (128, 32, 4),
        (64, 128, 4),
        (128, 32, 8),
    )
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, help="time for all shapes, to a minute"
    )
    parser.add_argument("--only", default="", help="only shapes whose name contains this")
    parser.add_argument("--interpret", action="store_true", help="test this file on a CPU")
    args = parser.parse_args(arguments)
    if jax.devices()[0].platform != "gpu" and not args.interpret:
        parser.error("JAX sees no GPU; --interpret runs a tiny shape without one")
    end = time.monotonic() + 60 * args.minutes
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    shapes = [x for x in (TINY if args.interpret else SHAPES) if args.only in x.name]
    num_kinds, forms = len({x.kind for x in shapes}), {}
    for shape in shapes:
        print(f"\n{shape}", flush=True)
        layer = Layer(shape, args.interpret)
        layer.time_others()
        is_new = shape.kind not in forms
        if is_new:
            now, left = time.monotonic(), num_kinds - len(forms)
            forms[shape.kind] = layer.best_form(now + (end - now) / left)
        if (best := forms[shape.kind]) is not None:
            layer.time_attention({"best": (layer.kernel(best), layer.inputs)})
            if is_new:
                layer.print_errors({"default": layer.default, "best": best})
    print("\nbest table:")
    for kind, form in sorted(forms.items(), key=lambda x: -x[0][1]):
        if form is not None:
            depth, length, is_local = kind
            print(f"    ({depth}, {length}, {is_local}, {form}),")


class Layer:
    """The inputs of a shape and what is timed with them."""

    def __init__(self, shape: Shape, interpret: bool):
        self.shape, self.interpret = shape, interpret
        size = shape.batch, shape.length, shape.heads * shape.depth
        keys = jax.random.split(jax.random.key(0), 5)
        *self.heads, self.gradient = (jax.random.normal(x, size, jnp.bfloat16) for x in keys[:4])
        number_L = 1 + jnp.arange(shape.length, dtype=jnp.int32) // (shape.length // shape.texts)
        numbers = jnp.broadcast_to(number_L, size[:2])
        self.inputs = *self.heads, numbers, *mask_keys(keys[4], (shape.batch, shape.heads))
        self.default = gpu_attention.find_form(shape.depth, shape.length, shape.window)

    def call(self, form: Form) -> Call:
        shape = self.shape
        return Call(shape.depth, shape.rate, shape.window, form, self.interpret)

    def kernel(self, form: Form):
        return functools.partial(kernel_attention, self.call(form))

    def time_others(self) -> None:
        """Times what the best tilings are compared with."""
        plain = sliced if self.shape.length > 512 else plain_attention
        self.time_attention(
            {
                "default": (self.kernel(self.default), self.inputs),
                "XLA": (functools.partial(plain, self.shape), self.inputs),
                "cuDNN, no dropout": (functools.partial(cudnn_attention, self.shape), self.heads),
            }
        )

    def time_attention(self, named: dict) -> None:
        """Prints the times of functions of some inputs, forward and in both passes."""
        jobs = []
        for attention, inputs in named.values():
            passes = functools.partial(output_and_gradients, attention)
            jobs += [(attention, inputs), (passes, (self.gradient, *inputs))]
        programs = compiled(jobs)
        concurrent.futures.wait(programs)
        for i, name in enumerate(named):
            try:
                seconds = [
                    timed(programs[j].result(), jobs[j][1], self.interpret)
                    for j in (2 * i, 2 * i + 1)
                ]
            # Out of memory, or a shape that is not supported.
            except Exception as error:
                print(f"  {name}: {first_line(error)}", flush=True)
                continue
            rates = self.tflops(PRODUCTS_FORWARD, seconds[0]), self.tflops(PRODUCTS, seconds[1])
            print(
                f"  {name}: forward {1e3 * seconds[0]:.3f} ms, {rates[0]:.0f} TFLOP/s, "
                f"both passes {1e3 * seconds[1]:.3f} ms, {rates[1]:.0f} TFLOP/s",
                flush=True,
            )

    def print_errors(self, forms: dict[str, Form]) -> None:
        width = 2 * self.shape.depth
        arrays = [x[:1, :, :width] for x in (self.gradient, *self.heads)]
        rest = self.inputs[3][:1], *(x[:1, :2] for x in self.inputs[4:])
        plain = functools.partial(plain_attention, self.shape)
        with jax.default_matmul_precision("highest"):
            exact = jax.jit(functools.partial(output_and_gradients, plain))(
                *(x.astype(jnp.float32) for x in arrays), *rest
            )
        for name, form in forms.items():
            passes = functools.partial(output_and_gradients, self.kernel(form))
            errors = [
                float(jnp.max(jnp.abs(one - other)) / jnp.max(jnp.abs(other)))
                for one, other in zip(jax.jit(passes)(*arrays, *rest), exact, strict=True)
            ]
            print(f"  {name}: errors {' '.join(f'{x:.1e}' for x in errors)}", flush=True)

    def tflops(self, products: int, seconds: float) -> float:
        return products * 2 * self.shape.depth * self.shape.num_pairs / seconds / 1e12

    def best_form(self, end: float) -> Form | None:
        """Compares tilings for each kernel until a time; None if none worked for one of them."""
        forward = functools.partial(gpu_attention.forward, self.call(self.default))
        output, log_sums = jax.jit(forward)(self.inputs)
        sums = gpu_attention.with_inner_sums(log_sums, output, self.gradient)
        best = {}
        for left, (name, (function, products)) in zip((3, 2, 1), KERNELS.items(), strict=True):
            inputs = self.inputs if name == "forward" else (*self.inputs, self.gradient, sums)
            now = time.monotonic()
            found = self.compare(name, function, inputs, now + (end - now) / left)
            for seconds, tiling in found[:3]:
                rate = self.tflops(products, seconds)
                print(f"  {name} {tuple(tiling)}: {1e3 * seconds:.3f} ms, {rate:.0f} TFLOP/s")
            if found:
                best[name] = found[0][1]
        return Form(**best) if len(best) == len(KERNELS) else None

    def compare(self, name: str, function, inputs, end: float) -> list[tuple[float, Tiling]]:
        """Returns the times of tilings, the shortest first."""
        candidates = [x for x in TILINGS if max(x.own, x.other) <= self.shape.length]
        candidates = candidates[:2] if self.interpret else candidates

        jobs = [
            (functools.partial(function, self.call(Form(tiling, tiling, tiling))), (inputs,))
            for tiling in candidates
        ]
        found, failures, programs = [], [], compiled(jobs)
        concurrent.futures.wait(programs, timeout=max(0, end - time.monotonic()))
        for program, tiling in zip(programs, candidates, strict=True):
            if found and not program.done():
                program.cancel()
                continue
            try:
                found.append((timed(program.result(), (inputs,), self.interpret), tiling))
            # More shared memory than there is, for example.
            except Exception as error:
                failures.append(f"{tuple(tiling)} {first_line(error)}")
        print(f"  {name}: {len(found)} of {len(candidates)} tilings timed", flush=True)
        for failure in failures[:2]:
            print(f"    {failure}", flush=True)
        return sorted(found)


def compiled(jobs: list[tuple]) -> list[concurrent.futures.Future]:
    """Compiles functions of some inputs, several at a time."""
    return [
        POOL.submit(lambda function, inputs: jax.jit(function).lower(*inputs).compile(), *job)
        for job in jobs
    ]


def kernel_attention(call: Call, query, key, value, numbers, *mask_keys):
    """Computes attention with our kernels."""
    return gpu_attention.fused_attention(
        *(query, key, value, numbers, mask_keys),
        depth=call.depth,
        rate=call.rate,
        window=call.window,
        form=call.form,
        interpret=call.interpret,
    )


def plain_attention(shape: Shape, query, key, value, numbers, *mask_keys):
    """Computes attention as models do in rows of up to 512 tokens."""
    query, key, value = heads_apart(shape, query, key, value)
    scores = jnp.einsum("BAQK,BALK->BAQL", query, key, preferred_element_type=jnp.float32)
    seen = numbers[:, None, :, None] == numbers[:, None, None]
    if shape.window is not None:
        position_L = jnp.arange(shape.length)
        seen &= jnp.abs(position_L[:, None] - position_L) <= shape.window
    scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    probs = jax.nn.softmax(scores).astype(query.dtype)
    if shape.rate:
        probs = dropped(probs, mask_keys, shape.rate)
    return jnp.einsum("BAQL,BALK->BQAK", probs, value).reshape(*numbers.shape, -1)


def sliced(shape: Shape, query, key, value, numbers, *mask_keys):
    """Computes attention as models do in longer rows."""
    heads = heads_apart(shape, query, key, value)
    context = sliced_attention(
        *heads, numbers, window=shape.window, causal=False, dropout=Dropout(shape.rate)
    )
    return context.swapaxes(1, 2).reshape(*numbers.shape, -1)


def cudnn_attention(shape: Shape, query, key, value):
    heads = (x.reshape(*x.shape[:2], -1, shape.depth) for x in (query, key, value))
    window = None if shape.window is None else (shape.window, shape.window)
    context = jax.nn.dot_product_attention(*heads, local_window_size=window, implementation="cudnn")
    return context.reshape(query.shape)


def heads_apart(shape: Shape, query, key, value) -> list[jax.Array]:
    """Returns scaled queries, keys and values, [B, A, L, K]."""
    query = query * jnp.asarray(shape.depth**-0.5, query.dtype)
    heads = (x.reshape(*x.shape[:2], -1, shape.depth) for x in (query, key, value))
    return [x.swapaxes(1, 2) for x in heads]


def output_and_gradients(attention, gradient, *inputs):
    heads, rest = inputs[:3], inputs[3:]
    output, pull = jax.vjp(lambda *heads: attention(*heads, *rest), *heads)
    return output, *pull(gradient)


def timed(function, inputs, once: bool) -> float:
    """Returns the seconds of a call: the least mean of three rounds."""
    jax.block_until_ready(function(*inputs))
    repeats, rounds = (1, 1) if once else (10, 3)
    means = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(repeats):
            outputs = function(*inputs)
        jax.block_until_ready(outputs)
        means.append((time.perf_counter() - started) / repeats)
    return min(means)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:150]}"


if __name__ == "__main__":
    main()
