"""What each weight is called and how it is laid out: here, by Hugging Face, by Google.

`transformers` stores a projection as [out, in]; the original stores [in, out], as we
do. Our attention kernels keep the heads as an axis of their own, [D, A, K] and
[A, K, D], which both others merge.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.weights import HEADS

Shape = tuple[int, ...]

# What becomes of our shape when it is written, before any transposition.
_MERGED: dict[str, Callable[[Shape], Shape]] = {
    "table": lambda s: s,
    "vector": lambda s: s,
    "matrix": lambda s: s,
    "classes": lambda s: s,
    "heads_in": lambda s: (s[0], s[1] * s[2]),
    "heads_bias": lambda s: (s[0] * s[1],),
    "heads_out": lambda s: (s[0] * s[1], s[2]),
}
_TRANSPOSED_BY_HUGGINGFACE = ("matrix", "classes", "heads_in", "heads_out")
# Of all its matrices the original keeps one as [out, in]: cls/seq_relationship.
_TRANSPOSED_BY_GOOGLE = ("classes",)


class ForeignTensor(NamedTuple):
    """A weight as another program knows it."""

    name: str
    layout: str
    transposed: bool

    def shape(self, ours: Shape) -> Shape:
        """Its shape there, of the shape here."""
        shape = _MERGED[self.layout](ours)
        return shape[::-1] if self.transposed else shape

    def export(self, value: np.ndarray) -> np.ndarray:
        """Ours, laid out as there; a view where the order of the elements allows it."""
        value = np.reshape(value, _MERGED[self.layout](value.shape))
        return value.T if self.transposed else value

    def restore(self, value: np.ndarray, ours: Shape) -> np.ndarray:
        """The inverse of `export`, bit for bit."""
        return np.reshape(value.T if self.transposed else value, ours)


# A line a weight: layout, our name, Hugging Face's, Google's; each table stands below a
# prefix of all three.
_LAYER = """
heads_in attention/query_kernel attention.self.query.weight attention/self/query/kernel
heads_bias attention/query_bias attention.self.query.bias attention/self/query/bias
heads_in attention/key_kernel attention.self.key.weight attention/self/key/kernel
heads_bias attention/key_bias attention.self.key.bias attention/self/key/bias
heads_in attention/value_kernel attention.self.value.weight attention/self/value/kernel
heads_bias attention/value_bias attention.self.value.bias attention/self/value/bias
heads_out attention/output_kernel attention.output.dense.weight attention/output/dense/kernel
vector attention/output_bias attention.output.dense.bias attention/output/dense/bias
vector attention_layer_norm/scale attention.output.LayerNorm.weight attention/output/LayerNorm/gamma
vector attention_layer_norm/bias attention.output.LayerNorm.bias attention/output/LayerNorm/beta
matrix intermediate/kernel intermediate.dense.weight intermediate/dense/kernel
vector intermediate/bias intermediate.dense.bias intermediate/dense/bias
matrix output/kernel output.dense.weight output/dense/kernel
vector output/bias output.dense.bias output/dense/bias
vector output_layer_norm/scale output.LayerNorm.weight output/LayerNorm/gamma
vector output_layer_norm/bias output.LayerNorm.bias output/LayerNorm/beta
"""
_EMBEDDINGS = """
table word_embeddings word_embeddings.weight word_embeddings
table position_embeddings position_embeddings.weight position_embeddings
table token_type_embeddings token_type_embeddings.weight token_type_embeddings
vector layer_norm/scale LayerNorm.weight LayerNorm/gamma
vector layer_norm/bias LayerNorm.bias LayerNorm/beta
"""
_POOLER = """
matrix dense/kernel dense.weight dense/kernel
vector dense/bias dense.bias dense/bias
"""
_MLM = """
matrix transform/kernel transform.dense.weight transform/dense/kernel
vector transform/bias transform.dense.bias transform/dense/bias
vector layer_norm/scale transform.LayerNorm.weight transform/LayerNorm/gamma
vector layer_norm/bias transform.LayerNorm.bias transform/LayerNorm/beta
vector output_bias bias output_bias
"""
_NSP = """
classes dense/kernel weight output_weights
vector dense/bias bias output_bias
"""
# Of fine-tuned models; the original has no one name for them.
_CLASSIFIER = """
classes dense/kernel weight -
vector dense/bias bias -
"""
_HEADS = {"question_answering": "qa_outputs."}
_TABLES = (
    ("bert/embeddings/", "bert.embeddings.", "bert/embeddings/", _EMBEDDINGS),
    ("bert/pooler/", "bert.pooler.", "bert/pooler/", _POOLER),
    ("mlm/", "cls.predictions.", "cls/predictions/", _MLM),
    ("nsp/", "cls.seq_relationship.", "cls/seq_relationship/", _NSP),
)
_LAYER_PREFIXES = ("bert/encoder/layer_{}/", "bert.encoder.layer.{}.", "bert/encoder/layer_{}/")


def huggingface_names(num_hidden_layers: int) -> dict[str, ForeignTensor]:
    """Our name -> that of `transformers.BertForPreTraining`."""
    return {
        ours: ForeignTensor(huggingface, layout, layout in _TRANSPOSED_BY_HUGGINGFACE)
        for layout, ours, huggingface, _ in _rows(num_hidden_layers)
    }


def huggingface_head_names(head: str) -> dict[str, ForeignTensor]:
    """Of a fine-tuned model's output layer: our name -> that of transformers' class."""
    prefix = _HEADS.get(head, "classifier.")
    rows = [line.split() for line in _CLASSIFIER.strip().splitlines()]
    return {
        f"classifier/{ours}": ForeignTensor(
            prefix + theirs, layout, layout in _TRANSPOSED_BY_HUGGINGFACE
        )
        for layout, ours, theirs, _ in rows
    }


def google_names(num_hidden_layers: int) -> dict[str, ForeignTensor]:
    """Our name -> that of a variable in google-research/bert's checkpoints."""
    return {
        ours: ForeignTensor(google, layout, layout in _TRANSPOSED_BY_GOOGLE)
        for layout, ours, _, google in _rows(num_hidden_layers)
    }


def _rows(num_hidden_layers: int) -> Iterator[tuple[str, str, str, str]]:
    """Layout and the three full names of every weight."""
    layers = [
        (*(prefix.format(i) for prefix in _LAYER_PREFIXES), _LAYER)
        for i in range(num_hidden_layers)
    ]
    for *prefixes, table in (*_TABLES, *layers):
        for line in table.strip().splitlines():
            layout, *names = line.split()
            yield layout, *map(operator.add, prefixes, names)


def match(
    found: Mapping[str, Shape],
    names: Mapping[str, ForeignTensor],
    shapes: Mapping[str, Shape],
    source: str,
) -> tuple[list[str], list[str]]:
    """Compares the tensors of a file with those that a BERT of its config has.

    Args:
      found: Names and shapes in the file.
      names: What each of our weights is called there.
      shapes: Our weights' shapes.
      source: What the file is, for messages.

    Returns:
      Our names of the weights that are there (a head may be missing as a whole), and
      the tensors that belong to no BERT for pre-training: other tasks' heads.

    Raises:
      UserError: tensors are missing, misshapen, or unknown inside the encoder; all
        of them are named.
    """
    absent = [head for head in HEADS if not any(names[n].name in found for n in _of(head, names))]
    wanted = [name for name in names if not name.startswith(tuple(absent))]
    missing = [names[name].name for name in wanted if names[name].name not in found]
    misshapen = [
        f"{names[name].name} is {list(found[names[name].name])}, not "
        f"{list(names[name].shape(shapes[name]))}"
        for name in wanted
        if names[name].name in found
        and tuple(found[names[name].name]) != names[name].shape(shapes[name])
    ]
    known = {outside.name for outside in names.values()}
    others = [name for name in found if name not in known]
    extra = [name for name in others if name.startswith(("bert.", "bert/"))]
    problems = []
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    if extra:
        problems.append(f"unknown: {', '.join(extra)}")
    if misshapen:
        problems.append(f"of another shape: {', '.join(misshapen)}")
    if problems:
        raise UserError(f"{source} is not the BERT of its config: {'; '.join(problems)}")
    return wanted, [name for name in others if name not in extra]


def _of(head: str, names: Mapping[str, ForeignTensor]) -> list[str]:
    return [name for name in names if name.startswith(head)]
