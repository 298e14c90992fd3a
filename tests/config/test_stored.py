"""Configs that version 0.1 stored, whose keys are partly gone."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config import default_config, from_dict, to_dict


def of_0_1(**values):
    """Returns a config with keys of 0.1 and their defaults there."""
    config = to_dict(default_config())
    config |= {"scan_layers": False, "sharding_rules": [], "max_replicated_fraction": 0.05}
    config["train"]["extra"] = {"steps": [5], "after_step": 0, "shape": [""]}
    config["train"]["early_stopping_patience"] = 3
    config["data"]["part_bytes"] = 2**27
    config["log"] = {"every_steps": 0, "trackers": []}
    return config | values


def test_keys_that_are_gone_are_left_out():
    expected = default_config()
    expected.train.num_steps += 5
    assert to_dict(from_dict(of_0_1())) == to_dict(expected)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"scan_layers": True}, "config.scan_layers is True, which only version 0.1 reads"),
        ({"scan_layer": False}, "config.scan_layer is not a known key"),
    ],
)
def test_what_this_version_cannot_have_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        from_dict(of_0_1(**values))
