"""Runs and commands on a token store of several parts."""

import pytest

from bert_jax.base.errors import UserError
from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining import settings
from bert_jax.pretraining import train as pretrain
from bert_jax.pretraining.input import open_run_input
from bert_jax.pretraining.summary import corpus_reports
from bert_jax.training.stages import resolve_stages
from tests import stores
from tests.runs import assert_same_bits, final_state
from tests.small_run import small_run, train_with_interruption, write_documents


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns a store of one part, and a store of the same texts in several."""
    directory = tmp_path_factory.mktemp("stores")
    texts = write_documents(directory / "texts", 40)
    for name, part_bytes in (("one", 2**27), ("parts", 4000)):
        with stores.parts_of(part_bytes):
            stores.make(stores.options(texts, heldout_fraction=0.2), directory / name, 200)
    return directory / "one", directory / "parts"


def config_for(store, **changes):
    # A block has at most one sentence, and so one document. There are two windows in an epoch.
    config = small_run("sotu", data__store=str(store), data__shuffle_sentences=16, **changes)
    return settings.complete(config, "", ConfigSource("defaults", small_run("sotu")))[0]


@pytest.mark.slow
def test_interrupted_run_is_bit_identical(made, tmp_path):
    _, parts = made
    config = config_for(parts, train__num_steps=40, checkpoint__every_steps=10)
    results = pretrain.train(config, tmp_path / "whole")
    assert results["num_sequences"] == 8
    train_with_interruption(config, tmp_path / "interrupted", 31)
    ours, theirs = (final_state(tmp_path / name) for name in ("whole", "interrupted"))
    assert_same_bits(ours, theirs)
    # The batches of the two stores differ.
    with pytest.raises(UserError, match="began with another corpus: its format_version was 2 and"):
        pretrain.train(config_for(made[0], train__num_steps=40), tmp_path / "whole")


def test_report(made, tmp_path):
    reports = []
    for store in made:
        config = config_for(store)
        run_input = open_run_input(config, tmp_path / store.name)
        reports += corpus_reports(run_input, config, resolve_stages(config))
    one, parts = reports
    same = ("documents", "sentences", "tokens", "sentences_per_document", "unknown")
    assert {key: one[key] for key in same} == {key: parts[key] for key in same}
