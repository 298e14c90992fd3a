"""A run on several named sources: results of each, pages, refusals."""

import json

import pytest

from bert_jax.base.errors import UserError
from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.open_input import open_run_input
from bert_jax.commands.pretrain import pretrain
from bert_jax.config.command_line import ConfigSource
from bert_jax.convert import convert
from bert_jax.pretraining import evaluation
from bert_jax.training import workdir
from configs import multilingual
from tests import stores
from tests.small_run import TEXT, small_run, write_documents

OTHER = TEXT.translate(str.maketrans("aeiouthn", "αειουτην"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    english = write_documents(directory / "en", 40)
    greek = write_documents(directory / "el", 10, OTHER * 2)
    return f"en={english},el={greek}"


def config_for(texts, **changes):
    config = small_run("sotu", multilingual.get_config("tiny"))
    values = {"data__sources": (texts,), "data__shuffle_sentences": 64, "train__num_steps": 40}
    values |= {"eval__every_steps": 20, "checkpoint__every_steps": 10}
    return small_run("sotu", config, **values | changes)


@pytest.fixture(scope="module")
def finished(texts, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "whole"
    config = config_for(texts)
    return config, directory, pretrain(config, directory)


def test_results_of_each_source(finished):
    _, directory, results = finished
    by_source = results["by_source"]
    assert list(by_source) == ["en", "el"]
    # Each has half of `eval.max_sequences`.
    assert [values["num_sequences"] for values in by_source.values()] == [4, 4]
    assert results["num_sequences"] == 8
    for name in ("nsp_loss", "nsp_accuracy"):
        mean = sum(values[name] for values in by_source.values()) / 2
        assert results[name] == pytest.approx(mean, rel=1e-5)
    losses = [values["mlm_loss"] for values in by_source.values()]
    assert min(losses) < results["mlm_loss"] < max(losses)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "eval_mlm_loss" in line][-1]
    assert [last[f"eval_{name}_mlm_loss"] for name in by_source] == losses
    assert json.loads((directory / "results.json").read_text())["by_source"] == by_source
    sources = results["corpus"][0]["sources"]
    assert list(sources) == ["en", "el"] and sources["el"]["repeats"] > 1.2


def test_baselines_are_those_of_a_source(finished):
    """The letters of the sources differ, so that the frequencies of one do not fit the other."""
    by_source = finished[2]["by_source"]
    config, directory, _ = finished
    run_input = open_run_input(config, directory)
    counts = evaluation.counts_by_source(run_input.train)
    assert all(run_input.train.token_counts == sum(counts.values()))
    log_probs = {name: evaluation.unigram_log_probs(n) for name, n in counts.items()}
    for name, split in run_input.heldout.by_source().items():
        expected = -(split.token_counts @ log_probs[name]) / split.token_counts.sum()
        # The tokens of four rows are a sample.
        assert by_source[name]["unigram_mlm_loss"] == pytest.approx(expected, rel=0.2)


@pytest.mark.slow
def test_a_source_of_one_document_is_scored_unless_rows_are_pairs(texts, tmp_path):
    (tmp_path / "book.txt").write_text(TEXT * 40)
    config = config_for(
        f"{texts},en-book={tmp_path}/book.txt",
        **{"data__rows": "segments", "train__num_steps": 2, "eval__max_sequences": 8},
        **{"objective__terms": ("masked_lm",), "objective__weights": (1.0,)},
    )
    results = pretrain(config, tmp_path / "run")
    sizes = {name: values["num_sequences"] for name, values in results["by_source"].items()}
    # 8 sequences at most, as many of each source.
    assert sizes == {"en": 2, "el": 2, "en-book": 2}


def test_an_export_names_the_sources_without_their_folders(finished, tmp_path):
    convert(str(finished[1]), str(tmp_path / "hf"), "huggingface")
    training = (tmp_path / "hf" / "bert_jax_training.json").read_text()
    assert json.loads(training)["config"]["data"]["sources"] == ["en=*.txt,el=*.txt"]
    assert str(tmp_path.parent) not in training
    convert(str(tmp_path / "hf"), str(tmp_path / "again"), "bert_jax")
    assert workdir.load_config(tmp_path / "again").data.sources == ("en=*.txt,el=*.txt",)


def test_a_given_store_names_its_sources(texts, tmp_path):
    same = {"heldout_fraction": 0.2, "lowercase": False, "max_sentence_tokens": 32}
    data = stores.options("sotu", sources=(texts,), **same)
    stores.make(data, tmp_path / "store", 200)
    given = {"data__store": str(tmp_path / "store"), "data__sampling_exponent": 1.0}

    def completed(**changes):
        plain = small_run("sotu", multilingual.get_config("tiny"))
        flags = frozenset(key.replace("__", ".") for key in {**given, **changes})
        config = small_run("sotu", multilingual.get_config("tiny"), **given | changes)
        return complete_config(config, "", ConfigSource("file", plain, flags))[0]

    config = completed()
    assert ",".join(config.data.sources) == texts
    assert completed(data__sources=(texts,)).data.sources == (texts,)
    with pytest.raises(UserError, match="input is .*/x.*, but .*made with .*: set"):
        completed(data__input=("/x",))
    with pytest.raises(UserError, match="sampling_exponent is 0.5, but .* was made with 1.0: set"):
        completed(data__sampling_exponent=0.5)


def test_an_exponent_without_names_is_refused(texts, tmp_path):
    config = config_for(texts, data__sources=(), data__input=(texts.split(",")[0][3:],))
    source = ConfigSource("file", config, frozenset({"data.sampling_exponent"}))
    with pytest.raises(UserError, match="sampling_exponent is 0.7 and .*: the texts have no names"):
        pretrain(config, tmp_path, source)
    assert not (tmp_path / "data").exists()
