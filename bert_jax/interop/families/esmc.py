"""ESM-C, of proteins: SwiGLU, normalized queries and keys, and a decoder of its own.

Of a protein with several chains, `transformers` can keep the chains apart (`sequence_id`), bert_jax
not. EsmcTokenizer makes an <unk> of white space, which is dropped here, and one of each unknown
letter, where a run of them is one here.
"""

from functools import partial

from bert_jax.interop.families import rotary
from bert_jax.interop.family import (
    SEQUENCES_AND_TOKENS,
    Family,
    Names,
    masked_lm_classes,
    task_classes,
)

_LAYER = f"""{rotary.LLAMA_LAYER}
vector attention/query_layer_norm/scale self_attn.q_norm.weight
vector attention/key_layer_norm/scale self_attn.k_norm.weight
norm attention_layer_norm input_layernorm
norm output_layer_norm post_attention_layernorm
"""
_LANGUAGE_MODEL = """
dense transform dense
norm layer_norm layer_norm
table output_embeddings decoder.weight
vector output_bias decoder.bias
"""
_OUTPUTS = {"SequenceClassification": "classifier.out_proj", "TokenClassification": "score"}

ESMC = Family(
    title="ESM-C",
    # Its own recipe is not published. ESM-2's rows and masks serve to continue it.
    recipe="esm",
    model_types=("esmc",),
    names=(
        Names("bert/embeddings/", "esmc.", "table word_embeddings embed_tokens.weight"),
        Names(
            "bert/encoder/layer_{}/",
            "esmc.layers.{}.",
            _LAYER,
            biasless=rotary.BIASLESS,
        ),
        Names("bert/encoder/layer_norm/", "esmc.norm.", "vector scale weight"),
        Names("mlm/", "lm_head.", _LANGUAGE_MODEL),
    ),
    pretraining_classes=masked_lm_classes("Esmc"),
    task_classes=task_classes(
        "Esmc", SEQUENCES_AND_TOKENS, _OUTPUTS, {"SequenceClassification": "classifier.dense"}
    ),
    tokenizer="EsmcTokenizer",
    config_keys=rotary.LLAMA_KEYS,
    fixed={
        "norm": "all_pre_and_final",
        "gated": True,
        "biasless": ("attention", "inner", "output", "final_norm"),
        "qk_norm": True,
        "residual_depth": 36,
        "head_act": "gelu",
        "tied_decoder": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.0,
    },
    defaults={"hidden_act": "silu", "attention_dropout": 0.0, "max_position_embeddings": 2048},
    constants=rotary.LLAMA_CONSTANTS | rotary.ONE_KEY_A_QUERY,
    written=rotary.LLAMA_CONSTANTS | rotary.ONE_KEY_A_QUERY,
    token_ids=rotary.LLAMA_TOKEN_IDS,
    encoder_prefixes=("esmc.",),
    read_config=partial(rotary.read_config, theta=10_000.0),
    write_config=rotary.write_config,
)
