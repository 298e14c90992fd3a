"""Checks that batches divide over the devices and that vocabularies match the model."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import check_batch, check_vocabulary, default_config


def test_vocabulary_must_match_the_model():
    config = default_config()
    check_vocabulary(config, 30522, 103, "x")
    with pytest.raises(UserError, match=r"30522.*vocab.txt has 28996.*model.vocab_size=28996"):
        check_vocabulary(config, 28996, 103, "vocab.txt")


def test_the_mask_of_another_vocabulary():
    config = default_config()
    config.model.mask_token_id = 32
    check_vocabulary(config, 30522, 32, "x")
    with pytest.raises(UserError, match="mask_token_id is 32, but the mask of x is 4; set"):
        check_vocabulary(config, 30522, 4, "x")


@pytest.mark.parametrize(
    "sizes, accumulation, shards, hosts, words",
    [
        ((256, 0, 0), 1, 64, 8, None),
        ((256, 0, 0), 8, 64, 8, "config.train.batch_size is 256, .*64 .*8 host.*8 grad.* is 512"),
        ((512, 0, 0), 8, 64, 8, None),
        ((512, 0, 100), 8, 64, 8, r"config.train.stages\[1\].batch_size is 100"),
        # No stage uses train.batch_size.
        ((7, 64, 128), 1, 64, 8, None),
        # Shards and hosts both divide the batch, though neither divides the other.
        ((96, 0, 0), 1, 4, 6, None),
        ((8, 0, 0), 1, 4, 6, "config.train.batch_size is 8"),
    ],
)
def test_batch_must_divide_over_the_devices(sizes, accumulation, shards, hosts, words):
    config = default_config()
    config.train.gradient_accumulation_steps = accumulation
    config.train.batch_size, *own = sizes
    for stage, size in zip(config.train.stages, own, strict=True):
        stage.batch_size = size
    if words is None:
        check_batch(config, shards, hosts)
    else:
        with pytest.raises(UserError, match=words):
            check_batch(config, shards, hosts)
