"""Reads the pickle inside a PyTorch weights file without unpickling it.

A pickle is a program for a small stack machine, and one of its instructions calls
any Python function that the file names. Here only the instructions that write a
state dict are understood, and none of them can call anything: a name in the file
is compared with the few below, never imported, and what comes out are numbers,
strings, tuples, lists, dicts, `Storage` and `Tensor`.
"""

import dataclasses
import pickletools
import re
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

_ORDERED_DICT = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_DTYPES = {
    "torch DoubleStorage": np.dtype(np.float64),
    "torch FloatStorage": np.dtype(np.float32),
    "torch HalfStorage": np.dtype(np.float16),
    "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch LongStorage": np.dtype(np.int64),
    "torch IntStorage": np.dtype(np.int32),
    "torch ShortStorage": np.dtype(np.int16),
    "torch CharStorage": np.dtype(np.int8),
    "torch ByteStorage": np.dtype(np.uint8),
    "torch BoolStorage": np.dtype(np.bool_),
}
_LITERALS = frozenset(
    "NONE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING "
    "SHORT_BINSTRING UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8".split()
)
_MAX_DIMENSIONS = 64  # numpy's own limit


class Refused(Exception):
    """What is wrong with the file: the rest of a sentence that begins with its name."""


@dataclasses.dataclass(frozen=True, eq=False)
class Storage:
    """Values in a row, kept outside the pickle under `key`."""

    key: str
    dtype: np.dtype
    size: int

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
    """A view of a storage as the file tells it, not yet known to lie within.

    Offset and strides count values, not bytes.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Global:
    """A name that the file may mention, as "module name"."""

    name: str


def read_pickle(file: BinaryIO) -> Any:
    """Returns the value of the pickle that starts where `file` stands.

    Time and memory are linear in the pickle's length, whatever it says.

    Args:
      file: Bytes in memory, as lengths told by the pickle are passed to its `read`.
        It is left standing behind the pickle.

    Raises:
      Refused: if the pickle holds what no state dict is made of.
      Exception: of some other kind (ValueError, IndexError, ...) if it is damaged.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop(count: int) -> list[Any]:
        return [stack.pop() for _ in range(count)][::-1]

    def pop_to_mark() -> list[Any]:
        return pop(len(stack) - marks.pop())

    for opcode, argument, _ in pickletools.genops(file):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case name if name in _LITERALS:
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE" as name:
                stack.append(name == "NEWTRUE")
            case "MARK":
                marks.append(len(stack))
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3" as name:
                stack.append(tuple(pop(int(name[-1]))))
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "EMPTY_LIST":
                stack.append([])
            case "LIST":
                stack.append(pop_to_mark())
            case "APPEND" | "APPENDS" as name:
                items = pop(1) if name == "APPEND" else pop_to_mark()
                _expect(list, stack[-1]).extend(items)
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                items = pop_to_mark()
                stack.append({})
                _set_items(stack[-1], items)
            case "SETITEM" | "SETITEMS" as name:
                items = pop(2) if name == "SETITEM" else pop_to_mark()
                _set_items(stack[-1], items)
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_global(argument))
            case "STACK_GLOBAL":
                stack.append(_global(" ".join(pop(2))))
            case "BINPERSID":
                stack.append(_storage(*pop(1)))
            case "REDUCE":
                stack.append(_value_of_call(*pop(2)))
            case "BUILD":
                # Sets attributes: of a state dict, the `_metadata` that nobody asks for.
                pop(1)
                _expect(dict, stack[-1])
            case "INST":
                raise _code(argument)
            case name:
                raise _code(f"pickle instruction {name}")
    (value,) = stack
    return value


def _global(name: str) -> _Global:
    if name in (_ORDERED_DICT, _TENSOR, _PARAMETER) or name in _DTYPES:
        return _Global(name)
    if re.fullmatch(r"torch \w+Storage", name):
        raise Refused(
            f"holds values of type {_shown(name)}: convert them to floats, integers or booleans"
        )
    raise _code(name)


def _code(name: str) -> Refused:
    return Refused(
        f"holds code ({_shown(name)}), not only weights: refused, as code in a file can do "
        "anything; save the model's state_dict() alone, or use safetensors"
    )


def _shown(name: str) -> str:
    """A name out of the file, harmless on a terminal."""
    return name[:100].replace(" ", ".", 1).encode("unicode_escape").decode()


def _storage(persistent_id: Any) -> Storage:
    match persistent_id:
        # The legacy format adds where in another storage this one lies: nowhere.
        case ("storage", _Global(name), str(key), str(), size) | (
            "storage",
            _Global(name),
            str(key),
            str(),
            size,
            None,
        ) if name in _DTYPES:
            return Storage(key, _DTYPES[name], _count(size))
    raise ValueError("what should be a storage is none")


def _value_of_call(function: Any, arguments: Any) -> Any:
    """What torch would get from `function(*arguments)`: an empty dict, or a tensor."""
    name = _expect(_Global, function).name
    match arguments:
        case () if name == _ORDERED_DICT:
            return {}
        case (Storage() as storage, offset, tuple(shape), tuple(strides), _, _, *flags) if (
            name == _TENSOR and len(shape) == len(strides) <= _MAX_DIMENSIONS
        ):
            if any(flags):
                raise Refused("holds a tensor that is lazily negated or conjugated: clone() it")
            counts = [tuple(_count(n) for n in numbers) for numbers in (shape, strides)]
            return Tensor(storage, _count(offset), *counts)
        case (Tensor() as tensor, _, _) if name == _PARAMETER:
            return tensor
    raise ValueError(f"{_shown(name)} is given wrong arguments")


def _set_items(target: Any, items: list[Any]) -> None:
    _expect(dict, target)
    for key, value in zip(items[::2], items[1::2], strict=True):
        # No other keys: the hash of tuples of tuples, or of a huge number, takes for ever.
        target[key if isinstance(key, str) else _count(key)] = value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"a {type(value).__name__} is no count")
    return value


def _expect(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value
