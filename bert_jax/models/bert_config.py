"""The model's hyperparameters, named as in BERT's own bert_config.json."""

import dataclasses
from typing import Any

import numpy as np

# The number of rows of the word embeddings and of the decoder's bias is a multiple of this, the
# lane width of a TPU, which is a multiple of any usual `model` axis. It does not depend on the
# mesh, so a checkpoint fits every mesh.
VOCAB_MULTIPLE = 128
# The sizes of a stored config are not trusted. These limits are far above all published models.
_MAX_ROWS, _MAX_WIDTH, _MAX_DEPTH = 10_000_000, 2**17, 1000
# Models with a decoder have only the defaults of some options of encoders.
_NO_DECODER = ("model.num_decoder_layers", 0)


def _key(default: Any, comment: str, *, is_required: bool = False, **facts: Any) -> Any:
    """Declares a key of `config.model`.

    Args:
      default: The value of BERT-base, and of `BertConfig` unless it `is_required`.
      comment, facts: See `bert_jax.config.schema.Field`.
    """
    metadata = {"default": default, "comment": comment, "of_weights": True, **facts}
    own = {} if is_required else {"default": default}
    return dataclasses.field(**own, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape and arithmetic of a BERT.

    The fields that `_key` declares are the keys of `config.model`. Initial weights determine them,
    except for those that affect only training (`of_weights=False`).
    """

    vocab_size: int = _key(
        30522,
        "Rows of the word embeddings. This must equal the size of the vocabulary.",
        is_required=True,
        above=0,
        at_most=_MAX_ROWS,
    )
    hidden_size: int = _key(
        768, "Width of the encoder (H).", is_required=True, above=0, at_most=_MAX_WIDTH
    )
    num_hidden_layers: int = _key(
        12, "Number of Transformer blocks (L).", is_required=True, above=0, at_most=_MAX_DEPTH
    )
    num_attention_heads: int = _key(
        12,
        "Attention heads in each block (A). hidden_size must be a multiple of this.",
        is_required=True,
        above=0,
    )
    intermediate_size: int = _key(
        3072,
        "Width of the feed-forward layer, 4H in the paper.",
        is_required=True,
        above=0,
        at_most=_MAX_WIDTH,
    )
    hidden_act: str = _key(
        "gelu",
        "Activation of the feed-forward layer. gelu is the exact form, with erf; gelu_new is the "
        "approximation with tanh.",
        choices=("gelu", "gelu_new", "relu", "silu"),
    )
    hidden_dropout_prob: float = _key(
        0.1,
        "Dropout probability after the embeddings and after both sublayers of each block.",
        at_least=0,
        below=1,
        of_weights=False,
    )
    attention_probs_dropout_prob: float = _key(
        0.1,
        "Dropout probability of the attention weights.",
        at_least=0,
        below=1,
        of_weights=False,
    )
    pooler_dropout_prob: float = _key(
        0.0,
        "Dropout probability before the pooler's dense layer. BERT has 0; RoBERTa's classifier has "
        "0.1.",
        at_least=0,
        below=1,
        of_weights=False,
    )
    max_position_embeddings: int = _key(
        512,
        "Rows of the learned position table. No stage may have longer sequences, with rotary "
        "positions either.",
        above=0,
        at_most=_MAX_ROWS,
    )
    type_vocab_size: int = _key(
        2,
        "Rows of the segment (token type) table. Pairs of sentences need two. 0 means no table.",
        at_least=0,
        at_most=_MAX_ROWS,
    )
    token_dropout: float = _key(
        0.0,
        "If above 0, the embeddings of masks are zero, and those of all other tokens of a text are "
        "multiplied by 1 minus this, divided by 1 minus the fraction of masks in the text, in "
        "evaluation too. ESM-2 has 0.12, the fraction that its training masks.",
        at_least=0,
        below=1,
    )
    mask_token_id: int = _key(
        -1,
        "Id of the mask, for token_dropout. -1 in a model without it.",
        at_least=-1,
        at_most=_MAX_ROWS,
    )
    initializer_range: float = _key(
        0.02,
        "Standard deviation of the initial weights, which are normal and truncated at two "
        "standard deviations.",
        above=0,
        of_weights=False,
    )
    layer_norm_eps: float = _key(1e-12, "Epsilon of LayerNorm.", above=0)
    causal: bool = _key(
        False,
        "Whether each position attends only to itself and to the positions before it.",
        only_with=_NO_DECODER,
    )
    embedding_size: int = _key(
        0,
        "Width of the embedding tables and of the decoder tied to them (E). A layer projects the "
        "embeddings to hidden_size (ALBERT, ELECTRA). 0 means hidden_size, without that layer.",
        at_least=0,
        at_most=_MAX_WIDTH,
        only_with=_NO_DECODER,
    )
    layer_groups: int = _key(
        0,
        "Number of groups (G) of consecutive blocks; the blocks of a group share their parameters. "
        "ALBERT has one group. 0 means that every block has its own parameters.",
        at_least=0,
        only_with=_NO_DECODER,
    )
    attention_output_dropout_prob: float = _key(
        -1.0,
        "Dropout probability after the attention sublayer of each block. -1 means "
        "hidden_dropout_prob; DistilBERT has 0.",
        at_least=0,
        below=1,
        also=-1,
        of_weights=False,
    )
    norm: str = _key(
        "post",
        "Position of LayerNorm in each block: post (after each residual sum, as in BERT), pre "
        "(before each sublayer, and none after the last block, as in FlauBERT-large), "
        "pre_and_final (before each sublayer but the first, which reads the LayerNorm of the "
        "embeddings, and after the last block, as in ModernBERT) or all_pre_and_final (before each "
        "sublayer and after the last block, but not after the embeddings, as in EuroBERT).",
        choices=("post", "pre", "pre_and_final", "all_pre_and_final"),
        only_with=_NO_DECODER,
    )
    norm_kind: str = _key(
        "layer",
        "What stands in all places of LayerNorm: layer is LayerNorm; rms is RMSNorm, which "
        "subtracts no mean and has no bias, as in EuroBERT.",
        choices=("layer", "rms"),
        only_with=_NO_DECODER,
    )
    num_key_value_heads: int = _key(
        0,
        "Heads of keys and values, if several heads of queries share one (grouped-query "
        "attention). num_attention_heads must be a multiple of this. 0 means that they have as "
        "many.",
        at_least=0,
        only_with=_NO_DECODER,
    )
    qk_norm: bool = _key(
        False,
        "Whether LayerNorms without biases follow the projections of queries and keys, each over "
        "all heads together and before rotary positions (ESM-C).",
        only_with=_NO_DECODER,
    )
    residual_depth: int = _key(
        0,
        "If above 0, the output of each sublayer is divided by the square root of "
        "num_hidden_layers / residual_depth before it is added. ESM-C has 36.",
        at_least=0,
        at_most=_MAX_DEPTH,
        only_with=_NO_DECODER,
    )
    rope_theta: float = _key(
        0.0,
        "Base of the wavelengths of rotary positions (RoPE), which turn queries and keys by angles "
        "proportional to their positions. 0 means a learned position table instead.",
        at_least=0,
        only_with=_NO_DECODER,
    )
    rope_scale: float = _key(
        1.0,
        "Number by which rotary positions are divided, in all layers. GTE's models for embeddings "
        "have numbers above 1.",
        above=0,
    )
    rope_dtype: str = _key(
        "float32",
        "The type to which the frequencies of rotary positions are rounded: float16 in the "
        "released ESM-2.",
        choices=("float32", "float16", "bfloat16"),
    )
    local_rope_theta: float = _key(
        0.0, "rope_theta of local layers. 0 means that they have the same.", at_least=0
    )
    local_attention: int = _key(
        0,
        "Width of the window of local layers, on both sides together: a position attends to those "
        "at most local_attention / 2 before or after it. 0 for a model without local layers.",
        at_least=0,
        at_most=_MAX_ROWS,
    )
    global_every: int = _key(
        1,
        "Attention is global in layers 0, n, 2n, ... and local in the others. 1 for a model "
        "without local layers; ModernBERT has 3.",
        above=0,
        at_most=_MAX_DEPTH,
    )
    gated: bool = _key(
        False,
        "Whether a second projection gates the feed-forward layer (GeGLU, ModernBERT): its output "
        "is multiplied by the activated one.",
        only_with=_NO_DECODER,
    )
    biases: bool = _key(
        True,
        "Whether projections and LayerNorms have biases. Those of classifiers always exist, and "
        "that of the decoder unless biasless names it.",
        only_with=_NO_DECODER,
    )
    biasless: tuple[str, ...] = _key(
        (),
        "Parts without biases, where others have them. attention: its four projections. inner: "
        "the projections to the width intermediate_size. output: the one from that width. "
        "final_norm: the LayerNorm after the last block. decoder: the decoder of the "
        "language-model head. NomicBERT has no biases in the first three, GTE none in inner.",
        choices=("attention", "inner", "output", "final_norm", "decoder"),
    )
    classifier_pooling: str = _key(
        "pooler",
        "What the classifiers of fine-tuning read. pooler: the pooler, or the states of tokens. "
        "cls and mean (ModernBERT): the state of the first token, the mean over all tokens, or the "
        "states of tokens, after the dense layer, activation and LayerNorm of the masked-LM head. "
        "late (EuroBERT): the mean over all tokens after these layers. In a model without "
        "head_transform, classifiers of sequences have such a dense layer and activation of their "
        "own, and those of tokens have none.",
        choices=("pooler", "cls", "mean", "late"),
        only_with=_NO_DECODER,
    )
    output_init_by_depth: bool = _key(
        False,
        "Whether the initial output matrices of both sublayers and the dense layer of the "
        "masked-LM head are divided by the square root of twice num_hidden_layers (ModernBERT).",
        of_weights=False,
    )
    head_transform: bool = _key(
        True,
        "Whether the language-model head has a dense layer, an activation and a LayerNorm before "
        "its decoder. In FlauBERT it is the decoder alone.",
    )
    head_act: str = _key(
        "",
        "Activation of the language-model head. If empty, it is hidden_act.",
        choices=("", "gelu", "gelu_new", "relu", "silu"),
    )
    tied_decoder: bool = _key(
        True,
        "Whether the decoder of the language-model head has the word embeddings as its matrix. "
        "That of EuroBERT is a table of its own.",
        only_with=_NO_DECODER,
    )
    pooler_act: str = _key(
        "tanh",
        "Activation of the pooler: tanh, or gelu or relu for the classifiers of ELECTRA and "
        "DistilBERT. none means that the pooler has no layer: classifiers read the state of the "
        "first token, as in FlauBERT.",
        choices=("tanh", "gelu", "relu", "none"),
    )
    generator_size: float = _key(
        0.0,
        "Width of ELECTRA's generator as a fraction of hidden_size. The generator has a head for "
        "every 64 units, a feed-forward layer of four times its width, and all num_hidden_layers. "
        "0 for a model without a generator.",
        only_with=("model.head_transform", True),
        at_least=0,
        at_most=1,
        of_weights=False,
    )
    num_decoder_layers: int = _key(
        0,
        "Number of blocks of the decoder (BART), whose other sizes are those of the encoder. 0 for "
        "a model without a decoder.",
        at_least=0,
        at_most=_MAX_DEPTH,
    )
    sinusoidal_positions: float = 0.0
    dtype: Any = np.dtype("float32")
    remat: str = "none"
    # The devices whose kernel computes attention, "tpu" or "gpu"; empty for none.
    fused_attention: str = ""
    # Whether one product gives the queries, keys and values that the kernel for TPUs reads, where
    # nothing rotates, normalizes or shares them.
    joins_heads: bool = False
    # Whether the outputs of LayerNorms and of the feed-forward activation are stored: see
    # `layers.stored`.
    stores_activations: bool = False

    @property
    def head_depth(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def has_embedding_norm(self) -> bool:
        return self.norm != "all_pre_and_final"

    @property
    def has_final_norm(self) -> bool:
        return self.norm in ("pre_and_final", "all_pre_and_final")

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables (E)."""
        return self.embedding_size or self.hidden_size

    @property
    def num_groups(self) -> int:
        """The number of groups of blocks (G). The blocks of a group share their parameters."""
        return self.layer_groups or self.num_hidden_layers

    @property
    def max_blocks(self) -> int:
        """The number of blocks with parameters of their own, in the encoder or in the decoder."""
        return max(self.num_groups, self.num_decoder_layers)

    def group_of(self, layer: int) -> int:
        """Returns the group of a block: floor(i G / N), as in ALBERT's modeling.py."""
        return layer * self.num_groups // self.num_hidden_layers

    def is_local(self, layer: int) -> bool:
        return layer % self.global_every != 0

    @property
    def window(self) -> int | None:
        """How far local attention reaches to either side; None in a model without local layers."""
        return self.local_attention // 2 if self.local_attention else None

    def has_biases(self, part: str) -> bool:
        """Returns whether a part has biases, by its name in `biasless`; empty for other parts."""
        return self.biases and part not in self.biasless

    def theta(self, is_local: bool) -> float:
        """Returns the `rope_theta` of local or global layers."""
        return (self.local_rope_theta if is_local else 0.0) or self.rope_theta

    @property
    def generator(self) -> "BertConfig":
        """ELECTRA's generator: as deep, `generator_size` times as wide, with the same embeddings.

        The shape follows `get_generator_config` in google-research/electra's run_pretraining.py.
        """
        width = round(self.hidden_size * self.generator_size)
        return dataclasses.replace(
            self,
            hidden_size=width,
            num_attention_heads=max(1, width // 64),
            intermediate_size=4 * width,
            embedding_size=self.embedding_width,
            generator_size=0.0,
        )

    @property
    def padded_vocab_size(self) -> int:
        """The number of rows of the word embeddings: `vocab_size` rounded up to a multiple of 128.

        The rows beyond the vocabulary are always zero: they get no gradient.
        """
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
