"""ESM-2, of proteins: LayerNorm before each sublayer, rotary positions, and rescaled embeddings.

A file that `transformers` 5 writes has the names `LayerNorm.gamma` and `LayerNorm.beta`. Both
versions read `weight` and `bias`, which are written here. The head for contacts, which masked LM
does not train, is left out with a warning, and its weights are written as zeros. The frequencies of
the rotary positions are read: those of the released models are rounded to float16, as they were in
training.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.families.roberta import MASKED_LM, TWO_LAYERS
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Family,
    Keys,
    Names,
    Tensor,
    masked_lm_classes,
    same_keys,
    task_classes,
)
from bert_jax.models import BertConfig

_EMBEDDINGS = "table word_embeddings word_embeddings.weight"
_LAYER = """
norm attention_layer_norm attention.LayerNorm
heads attention/query attention.self.query
heads attention/key attention.self.key
heads attention/value attention.self.value
heads_output attention/output attention.output.dense
norm output_layer_norm LayerNorm
dense intermediate intermediate.dense
dense output output.dense
"""
_CONFIG_KEYS = """
vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_dropout_prob
attention_probs_dropout_prob max_position_embeddings initializer_range layer_norm_eps rope_theta
token_dropout mask_token_id rope_dtype
"""
_PREFIX, _CONTACT_HEAD = "esm.", "contact_head.regression."
# All released files of ESM-2 have a table of positions, which no ESM-2 uses.
_UNUSED_TABLE = "esm.embeddings.position_embeddings.weight"
_POSITIONS = "position_embedding_type"
_CONSTANTS = {_POSITIONS: "rotary", "emb_layer_norm_before": False, "is_folding_model": False}


def _read_config(config: Keys, path: Path) -> Keys:
    if config.get(_POSITIONS) != "rotary":
        raise UserError(f"{path}: {_POSITIONS} is {config.get(_POSITIONS)!r}; it must be 'rotary'")
    mask_id = config.get("mask_token_id") if config.get("token_dropout") else -1
    if mask_id is None:
        raise UserError(f"{path} has no mask_token_id, which token_dropout needs")
    theta = config.get("rope_theta", 10_000.0)
    return config | {"rope_theta": theta, "mask_token_id": mask_id}


def _write_config(config: Keys, model: BertConfig) -> Keys:
    if not model.rope_theta:
        raise UserError("config.model.rope_theta is 0; an ESM-2 has rotary positions")
    del config["rope_dtype"]
    if not model.token_dropout:
        del config["mask_token_id"]
    return config


def _frequencies(model: BertConfig) -> np.ndarray:
    """Returns the frequencies of the rotary positions, which `transformers` takes from a file."""
    depth = model.head_depth
    return 1 / model.rope_theta ** (np.arange(0, depth, 2, dtype=np.float32) / depth)


def _read_tensors(tensors: dict[str, Tensor], model: BertConfig, file: Path) -> Keys:
    """Returns the type to which the frequencies of a file are rounded, as a key of the model."""
    tensors.pop(_UNUSED_TABLE, None)
    for name in [name for name in tensors if name.startswith(_PREFIX + _CONTACT_HEAD)]:
        # Zeros are those of an export. Others are left out with a warning, as all heads are that
        # have no name here.
        if (tensor := tensors.pop(name)).read().any():
            tensors[name.removeprefix(_PREFIX)] = tensor
    found = [name for name in tensors if name.endswith("inv_freq")]
    if not found:
        return {}
    value = tensors[found[0]].read().astype(np.float32)
    for dtype in ("float32", "float16", "bfloat16"):
        error = max(1e-6, float(ml_dtypes.finfo(dtype).eps))
        is_rounded = np.array_equal(value, value.astype(dtype).astype(np.float32))
        if is_rounded and np.allclose(value, _frequencies(model), rtol=error, atol=0):
            return {"rope_dtype": dtype}
    raise UserError(
        f"{file}: {found[0]} does not have the frequencies of rope_theta={model.rope_theta}"
    )


def _write_tensors(model: BertConfig, head: str) -> dict[str, np.ndarray]:
    """Returns the frequencies of the rotary positions, and a head for contacts of zeros."""
    angles = _frequencies(model).astype(model.rope_dtype).astype(np.float32)
    name = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    heads = model.num_hidden_layers * model.num_attention_heads
    return {
        **{name.format(i): angles.copy() for i in range(model.num_hidden_layers)},
        f"{_PREFIX}{_CONTACT_HEAD}weight": np.zeros((1, heads), np.float32),
        f"{_PREFIX}{_CONTACT_HEAD}bias": np.zeros(1, np.float32),
    }


ESM = Family(
    title="ESM-2",
    recipe="esm",
    model_types=("esm",),
    names=(
        Names("bert/embeddings/", "esm.embeddings.", _EMBEDDINGS),
        Names("bert/encoder/layer_{}/", "esm.encoder.layer.{}.", _LAYER),
        Names("bert/encoder/", "esm.encoder.", "norm layer_norm emb_layer_norm_after"),
        Names("bert/", "esm.", "dense pooler/dense pooler.dense"),
        MASKED_LM,
    ),
    pretraining_classes=masked_lm_classes("Esm"),
    task_classes=task_classes("Esm", SEQUENCES_AND_TOKENS, **TWO_LAYERS),
    tokenizer="EsmTokenizer",
    # The activation of the class is always gelu.
    config_keys=same_keys(_CONFIG_KEYS),
    # The class has the fraction of its training, 15 % times 80 %, in its code.
    value_names={"token_dropout": {0.0: False, 0.12: True}},
    fixed={"norm": "all_pre_and_final", "type_vocab_size": 0},
    defaults={"max_position_embeddings": 1026},
    constants=_CONSTANTS | {"is_decoder": False, "add_cross_attention": False},
    written=_CONSTANTS | {"esmfold_config": None, "vocab_list": None},
    token_ids={"mask_token_id": "mask_id", "pad_token_id": "pad_id"},
    encoder_prefixes=("esm.",),
    renamed=BERT.renamed,
    tied={
        "lm_head.decoder.weight": "esm.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    read_config=_read_config,
    write_config=_write_config,
    read_tensors=_read_tensors,
    write_tensors=_write_tensors,
)
