"""A BERT that converts in milliseconds, in which all values differ."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from bert_jax.heads import load_head
from bert_jax.interop.families import load_family
from bert_jax.interop.model_keys import MODEL_KEYS
from bert_jax.interop.names import export_weights, foreign_names
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import expected_shapes, model_shapes
from bert_jax.models import BertConfig
from bert_jax.tokenizers.special_tokens import CONVENTIONS, SPECIAL_TOKENS
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer

_LETTERS = "abcdefghij"
_PIECES = [*_LETTERS, *(f"##{c}" for c in _LETTERS), "the", "##ing", "."]
TOKENS = [*SPECIAL_TOKENS.spellings, *_PIECES]
MODEL = {
    **{key: default for key, default in MODEL_KEYS.items() if default is not None},
    "vocab_size": len(TOKENS),
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
}


LABELS = ("no", "perhaps", "yes")
# All task heads, with their labels.
HEADS = [
    ("sequence_classification", LABELS),
    ("sequence_classification", ()),
    ("token_classification", LABELS),
    ("question_answering", ()),
    ("multiple_choice", ()),
]

# The config values in which each family differs from BERT.
FAMILIES = {"bert": {}} | dict.fromkeys(
    ("roberta", "xlm_roberta", "camembert"), {"type_vocab_size": 1, "pooler_dropout_prob": 0.1}
)
FAMILIES["distilbert"] = {
    "type_vocab_size": 0,
    "attention_output_dropout_prob": 0.0,
    "pooler_act": "relu",
}
FAMILIES["electra"] = {"embedding_size": 10, "pooler_act": "gelu", "pooler_dropout_prob": 0.1}
FAMILIES["bart"] = {"type_vocab_size": 0, "layer_norm_eps": 1e-5, "num_decoder_layers": 2}
# Groups of one layer and of two.
FAMILIES["albert"] = {"embedding_size": 7, "layer_groups": 2}
FAMILIES["modernbert"] = {
    "type_vocab_size": 0,
    "norm": "pre_and_final",
    "gated": True,
    "biases": False,
    "rope_theta": 800.0,
    "local_rope_theta": 50.0,
    "local_attention": 6,
    "global_every": 3,
    "classifier_pooling": "cls",
    "num_hidden_layers": 5,
    "layer_norm_eps": 1e-5,
}
FAMILIES["nomic_bert"] = {
    "hidden_act": "silu",
    "gated": True,
    "biasless": ("attention", "inner", "output"),
    "rope_theta": 300.0,
}
FAMILIES["gte"] = {
    "gated": True,
    "biasless": ("inner",),
    "rope_theta": 900.0,
    "rope_scale": 1.5,
}
FAMILIES["jina_v3"] = {"type_vocab_size": 1, "pooler_dropout_prob": 0.1, "rope_theta": 70.0}
FAMILIES["eurobert"] = {
    "vocab_size": len(_PIECES) + len(CONVENTIONS["eurobert"].last),
    "type_vocab_size": 0,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "gated": True,
    "norm": "all_pre_and_final",
    "norm_kind": "rms",
    "biasless": ("attention", "inner", "output", "decoder"),
    "tied_decoder": False,
    "head_transform": False,
    "head_act": "gelu",
    "classifier_pooling": "late",
    "rope_theta": 50.0,
    "hidden_dropout_prob": 0.0,
}
FAMILIES["esm"] = {
    "vocab_size": len(_PIECES) + len(SPECIAL_TOKENS.spellings),
    "type_vocab_size": 0,
    "norm": "all_pre_and_final",
    "rope_theta": 50.0,
    "token_dropout": 0.12,
    "mask_token_id": len(_PIECES) + len(SPECIAL_TOKENS.spellings) - 1,
}
FAMILIES["esmc"] = {
    "vocab_size": FAMILIES["esm"]["vocab_size"],
    "type_vocab_size": 0,
    "hidden_act": "silu",
    "head_act": "gelu",
    "gated": True,
    "norm": "all_pre_and_final",
    "biasless": ("attention", "inner", "output", "final_norm"),
    "qk_norm": True,
    "residual_depth": 36,
    "tied_decoder": False,
    "layer_norm_eps": 1e-5,
    "rope_theta": 50.0,
    "hidden_dropout_prob": 0.0,
}
FAMILIES["flaubert"] = {
    "type_vocab_size": 0,
    "head_transform": False,
    "pooler_act": "none",
    "intermediate_size": 48,
}


def make_tokenizer(convention: str = "bert", **options) -> WordPieceTokenizer:
    defaults = {"lowercase": True, "max_input_chars_per_word": 200}
    special = CONVENTIONS[convention]
    tokens = [*special.first, *_PIECES, *special.last]
    return WordPieceTokenizer(tokens, special_tokens=special, **(defaults | options))


def make_pretrained(
    seed: int = 0, terms: tuple[str, ...] = (), family: str = "bert", **model
) -> Pretrained:
    """Makes a model with random values, because zeros or ones could hide a lost tensor."""
    values = MODEL | FAMILIES[family] | model
    terms = terms or load_family(family).pretraining_classes[0].terms
    shapes = expected_shapes(BertConfig(**values), terms)
    return _pretrained(_random(shapes, seed), values, family, terms=terms)


def make_finetuned(
    head: str, labels: tuple[str, ...] = (), seed: int = 0, family: str = "bert", **model
) -> Pretrained:
    """Makes a model as `make_pretrained` does, but with a task head."""
    values = MODEL | FAMILIES[family] | model
    task_model = load_head(head).make_model(BertConfig(**values), len(labels))
    weights = _random(model_shapes(task_model), seed)
    return _pretrained(weights, values, family, head=head, labels=labels)


def _pretrained(weights, values, family, **attributes) -> Pretrained:
    conventions = dict.fromkeys(("bert", "distilbert", "electra", "flaubert", "nomic_bert"), "bert")
    conventions |= {name: name for name in ("albert", "modernbert", "eurobert", "esm")}
    conventions["esmc"] = "esm"
    tokenizer = make_tokenizer(conventions.get(family, "roberta"))
    return Pretrained("a test", values, weights, tokenizer, [], {}, family, **attributes)


def _random(shapes, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def copies(weights) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in weights.items()}


def same_weights(one, other) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[n], other[n]) for n in one)


def write_google(pretrained: Pretrained, directory: Path) -> Path:
    """Writes a checkpoint as google-research/bert does; returns its directory."""
    from bert_jax.base.lean_tensorflow import tf

    family = load_family(pretrained.family)
    names = foreign_names(family.names, "google", pretrained.model_config.num_groups)
    tensors = dict(export_weights(pretrained.weights, names))
    pretrained.tokenizer.save_vocabulary(directory)
    keys = family.config_keys.items()
    config = {theirs: pretrained.model[ours] for ours, theirs in keys}
    (directory / "bert_config.json").write_text(json.dumps(config))
    tf.raw_ops.SaveV2(
        prefix=str(directory / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return directory


def edit_tensors(directory: Path, change) -> None:
    """Applies `change` to the tensors of model.safetensors."""
    path = directory / "model.safetensors"
    tensors = dict(load_file(path))
    change(tensors)
    save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, path, {"format": "pt"})


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def drop_tensors(tensors, *prefixes):
    for name in [name for name in tensors if name.startswith(prefixes)]:
        del tensors[name]
