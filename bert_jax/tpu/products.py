"""Counts the FLOPs of the matrix products in a compiled TPU program.

The TPU compiler writes every matrix product as a convolution: `dim_labels=0bf_io0->0bf` names the
axes of both factors and of the result, where b, f, i and o are axes of batch and features, and
digits are axes that a window moves along.
"""

import re
from collections.abc import Iterable

OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
_PRODUCT = re.compile(r" (?:convolution|dot)\(")
_SHAPE = re.compile(r"^[a-z]\w*\[([\d,]*)\]")
_FACTORS = re.compile(r" convolution\(%([^\s,)]+), %([^\s,)]+)\)")
_AXES = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r" window=\{([^}]*)\}")
# The options of a window that are read, and what they are if they are not written.
_DEFAULTS = {"size": 0, "stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}


def is_product(operation: str) -> bool:
    """Returns whether an operation, without its name, is a matrix product."""
    return bool(_PRODUCT.search(operation))


def shapes_of(lines: Iterable[str]) -> dict[str, list[int]]:
    """Returns the sizes of every array that the operations of a computation make, by name."""
    found = (match for line in lines if (match := OPERATION.match(line)))
    return {match[1]: _sizes(match[2]) for match in found if _SHAPE.match(match[2])}


def product_flops(product: str, shapes: dict[str, list[int]]) -> int:
    """Counts the FLOPs of a matrix product; a multiply-add counts two.

    Args:
      product: The operation, without its name.
      shapes: The result of `shapes_of` for its computation.

    Raises:
      ValueError: The product is not understood.
    """
    factors, axes = _FACTORS.search(product), _AXES.search(product)
    if not factors or not axes:
        raise ValueError(f"a matrix product is not understood: {product}")
    result = dict(zip(axes[3], _sizes(product), strict=True))
    left = dict(zip(axes[1], shapes[factors[1]], strict=True))
    right = dict(zip(axes[2], shapes[factors[2]], strict=True))
    window = _WINDOW.search(product)
    options = dict(part.split("=") for part in window[1].split()) if window else {}
    pairs = 1
    for axis in filter(str.isdigit, axes[3]):
        size, stride, before, spread, gap = (
            _option(options, name, int(axis)) for name in _DEFAULTS
        )
        if size != right[axis]:
            raise ValueError(f"the window of a matrix product is not understood: {product}")
        # Each place of the window multiplies only where it covers an element, not padding.
        covered = (
            place * stride + step * gap - before
            for place in range(result[axis])
            for step in range(right[axis])
        )
        pairs *= sum(0 <= at < left[axis] * spread and at % spread == 0 for at in covered)
    return 2 * pairs * result["b"] * result["f"] * right["i"]


def _option(options: dict[str, str], name: str, axis: int) -> int:
    """Reads an option of a window along an axis; for "pad", the padding before the array."""
    if name not in options:
        return _DEFAULTS[name]
    return int(options[name].split("x")[axis].split("_")[0])


def _sizes(operation: str) -> list[int]:
    return [int(size) for size in _SHAPE.match(operation)[1].split(",") if size]
