"""JAX's attention kernel for TPUs, which skips the blocks of scores that a window masks.

It has no dropout. Unlike `tpu_attention`, it reads keys block by block, so rows can be long.
"""

import jax
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.on_devices import num_head_shards, on_each_device
from bert_jax.models.tpu_attention import LANES

# Positions in a block of queries or keys, at most. With a window, larger blocks would compute more
# scores that the mask then drops. Not tuned on a TPU.
_BLOCK, _LOCAL_BLOCK = 512, 256
# The kernel reads heads with positions in the lanes, half of which a depth of 64 would leave empty.
_LAYOUT = splash.QKVLayout.SEQ_MINOR
# The logical axes of an array [B, A, L, K], and of one [B, L].
_HEADS, _EACH_TOKEN = ("batch", "activation_heads", None, None), ("batch", None)


def fits(config: BertConfig, length: int) -> bool:
    """Returns whether the kernel supports a sequence length and the heads on each device."""
    return length % LANES == 0 and config.num_attention_heads % num_head_shards() == 0


def attention(
    query_BxAxLxK: jax.Array,
    key_BxAxLxK: jax.Array,
    value_BxAxLxK: jax.Array,
    numbers_BxL: jax.Array,
    *,
    window: int | None,
    interpret: bool = False,
) -> jax.Array:
    """Returns softmax(query key^T) times value, [B, A, L, K].

    Args:
      query_BxAxLxK, key_BxAxLxK, value_BxAxLxK: Heads for which `fits` is true; queries are scaled.
      numbers_BxL, window: As in `sliced_attention`.
      interpret: Runs the kernel as plain JAX on any device, for tests.
    """

    def local(query, key, value, numbers_BxL):
        _, heads, length, _ = query.shape
        shape, largest = (length, length), _BLOCK if window is None else _LOCAL_BLOCK
        mask = splash.FullMask(shape)
        if window is not None:
            mask = splash.LocalMask(shape, (window, window), offset=0)
        block = max(size for size in (LANES, 2 * LANES, 4 * LANES) if length % size == 0)
        block = min(block, largest)
        kernel = splash.make_splash_mha_single_device(
            splash.MultiHeadMask([mask] * heads),
            block_sizes=splash.BlockSizes(
                *[block] * 8, q_layout=_LAYOUT, k_layout=_LAYOUT, v_layout=_LAYOUT
            ),
            interpret=interpret,
        )
        return (jax.vmap(kernel)(query, key, value, splash.SegmentIds(numbers_BxL, numbers_BxL)),)

    inputs = (query_BxAxLxK, key_BxAxLxK, value_BxAxLxK, numbers_BxL)
    (context_BxAxLxK,) = on_each_device(local, inputs, [_HEADS] * 3 + [_EACH_TOKEN], [_HEADS])
    return context_BxAxLxK
