"""The command `finetune`."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.finetune import check_flags


@pytest.mark.parametrize(
    ("epochs", "given", "is_sweep", "words"),
    [
        ((0.0,), {"sweep.seeds"}, False, "--config.sweep.seeds has no effect without --sweep"),
        ((0.0,), {"seed"}, True, "--config.seed has no effect with --sweep, .*sweep.seeds=0,1,2,3"),
        ((1.0, 2.0), {"train.num_epochs"}, True, "num_epochs .*--sweep, .*sweep.epochs=1.0,2.0"),
        ((0.0,), {"train.num_epochs", "sweep.seeds"}, True, ""),
        ((0.0,), {"seed", "train.batch_size", "schedule.peak_learning_rate"}, False, ""),
    ],
)
def test_what_has_no_effect_with_or_without_a_sweep_is_refused(epochs, given, is_sweep, words):
    config = finetune_config("table")
    config.sweep.epochs = epochs
    if not words:
        check_flags(config, given, is_sweep)
        return
    with pytest.raises(UserError, match=words):
        check_flags(config, given, is_sweep)
