"""What every block is made of: projections, LayerNorm, activations."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    # The first release used the exact form; `gelu_new` is transformers' name
    # for the tanh approximation that google-research/bert changed to later.
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
}


def weight_init(config: BertConfig, *axes: str):
    """BERT's initializer: a normal of deviation `initializer_range`, cut at two.

    As in TensorFlow's truncated_normal_initializer, the deviation is that of the
    normal before it is cut. jax's initializer of the same name rescales its draws
    so that the cut distribution has the deviation asked for; hence not that one.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
        return config.initializer_range * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return nn.with_logical_partitioning(init, axes)


def zeros_init(*axes: str):
    """Zeros, the start of every bias."""
    return nn.with_logical_partitioning(nn.initializers.zeros_init(), axes)


class Projection(nn.Module):
    """An affine map of the last axis, D -> F.

    Attributes:
      config: The model's hyperparameters.
      features: F.
      axes: Logical names of the kernel's two axes.
    """

    config: BertConfig
    features: int
    axes: tuple[str, str]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype = self.config.dtype
        shape = (x.shape[-1], self.features)
        kernel = self.param("kernel", weight_init(self.config, *self.axes), shape)
        bias = self.param("bias", zeros_init(self.axes[1]), shape[1:])
        return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)


def layer_norm(config: BertConfig, name: str) -> nn.LayerNorm:
    """LayerNorm with float32 statistics and parameters, output in `config.dtype`."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_eps,
        dtype=config.dtype,
        param_dtype=jnp.float32,
        scale_init=nn.with_logical_partitioning(nn.initializers.ones_init(), ("norm",)),
        bias_init=zeros_init("norm"),
        name=name,
    )
