"""The report on a token store of several parts."""

from bert_jax.config.command_line import ConfigSource
from bert_jax.pretraining import settings
from bert_jax.pretraining.input import open_run_input
from bert_jax.pretraining.summary import corpus_reports
from bert_jax.training.stages import resolve_stages
from tests import stores
from tests.small_run import small_run, write_documents


def test_report(tmp_path):
    texts, reports = write_documents(tmp_path / "texts", 40), []
    for name, part_bytes in (("one", 2**27), ("parts", 4000)):
        store = tmp_path / name
        with stores.parts_of(part_bytes):
            stores.make(stores.options(texts, heldout_fraction=0.2), store, 200)
        # A block has at most one sentence, and so one document.
        config = small_run("sotu", data__store=str(store), data__shuffle_sentences=16)
        source = ConfigSource("defaults", small_run("sotu"))
        config = settings.complete(config, "", source)[0]
        run_input = open_run_input(config, tmp_path / f"run of {name}")
        reports += corpus_reports(run_input, config, resolve_stages(config))
    one, parts = reports
    same = ("documents", "sentences", "tokens", "sentences_per_document", "unknown")
    assert {key: one[key] for key in same} == {key: parts[key] for key in same}
