"""Runs of config.task=seq2seq with a small BART."""

import json
import random

import pytest

import bert_jax
from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config
from bert_jax.finetuning.run import FinetuningRun, finetune
from bert_jax.interop import formats
from tests.finetuning import small
from tests.interop.small_bert import make_pretrained, same_weights


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bart") / "hf"
    pretrained = make_pretrained(family="bart", hidden_size=24, num_hidden_layers=1)
    for name in pretrained.weights:
        pretrained.weights[name] *= 0.2
        if name.endswith("scale"):
            pretrained.weights[name] += 1
    formats.write(pretrained, directory, "huggingface")
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows whose target is the first letter of the source."""
    directory, letters = tmp_path_factory.mktemp("data"), random.Random(0)
    for split, count in (("train", 128), ("validation", 24), ("test", 8)):
        rows = []
        for _ in range(count):
            words = letters.choices(small.LETTERS, k=letters.randint(2, 9))
            rows.append({"source": " ".join(words), "target": words[0]})
        if split == "test":
            # Longer than data.max_seq_length.
            rows.append({"source": " ".join(small.LETTERS * 3), "target": "a"})
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return directory


def read_lines(path):
    return path.read_text().splitlines()


def config(bart, data, **overrides):
    config = finetune_config("seq2seq")
    values = small.OVERRIDES | {
        "init_from": str(bart),
        "data.input": str(data),
        # As long as a source, which is cut.
        "seq2seq.max_target_length": 16,
        "data.length_multiple": 0,
        "train.batch_size": 16,
        "train.num_epochs": 12.0,
        "eval.every_steps": 48,
        "eval.predict": "test",
    }
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    config.update_from_flattened_dict(values)
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory, bart, data):
    directory = tmp_path_factory.mktemp("run")
    return directory, finetune(config(bart, data), directory)


def test_a_run_learns_and_writes_its_texts(trained, data):
    directory, results = trained
    assert results["score"] > 0.5 > results["validation"]["lead_rougeL"]
    assert results["score"] == results["validation"]["rougeL"]
    assert results["test"]["rougeL"] > 0, "a test file with targets is scored"
    lines = read_lines(directory / "predictions" / "test.jsonl")
    predictions = [json.loads(line)["prediction"] for line in lines]
    sources = [json.loads(line)["source"] for line in read_lines(data / "test.jsonl")]
    # The trained model generates the same texts in memory.
    loaded = bert_jax.load(str(directory))
    assert loaded.max_length == small.OVERRIDES["data.max_seq_length"]
    with pytest.warns(UserWarning, match="truncated"):
        assert loaded.generate(sources) == predictions
    losses = [
        line["loss"]
        for line in map(json.loads, read_lines(directory / "metrics.jsonl"))
        if "loss" in line
    ]
    assert losses[-1] < 0.7 * losses[0]


def test_an_export_generates_the_same(trained, data, tmp_path):
    directory, _ = trained
    pretrained = formats.read(str(directory))
    weights = dict(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    written = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert written["max_length"] == 17 and written["num_beams"] == 1
    assert same_weights(formats.read(tmp_path / "hf").weights, weights)
    ours, theirs = (bert_jax.load(str(path)) for path in (directory, tmp_path / "hf"))
    texts = ["a b c", "d e f g h"]
    assert ours.generate(texts) == theirs.generate(texts)


def test_a_run_that_crashed_ends_the_same(trained, bart, data, tmp_path, monkeypatch):
    """It crashes in the second evaluation, and continues from the checkpoint of step 90."""
    evaluate, crashed = FinetuningRun.evaluate, []

    def crash(run, state, *others):
        if int(state.step) == 96 and not crashed:
            crashed.append(state)
            raise RuntimeError
        evaluate(run, state, *others)

    monkeypatch.setattr(FinetuningRun, "evaluate", crash)
    with pytest.raises(RuntimeError):
        finetune(config(bart, data), tmp_path / "run")
    results = finetune(config(bart, data), tmp_path / "run")
    directory, expected = trained
    for key in ("score", "best_step", "validation", "test", "step"):
        assert results[key] == expected[key]
    weights = formats.read(str(tmp_path / "run")).weights
    assert same_weights(weights, formats.read(str(directory)).weights)


def test_what_does_not_fit_is_refused(bart, data, tmp_path):
    small.write_bert(tmp_path / "bert")
    with pytest.raises(UserError, match="task is seq2seq, but .*bert has no decoder"):
        finetune(config(tmp_path / "bert", data), tmp_path / "run")
    with pytest.raises(UserError, match="config.seq2seq.max_target_length is 99; .* from 1 to 40"):
        finetune(config(bart, data, seq2seq__max_target_length=99), tmp_path / "run")
    with pytest.raises(UserError, match="config.train.features is -1, but config.task is seq2seq"):
        finetune(config(bart, data, train__features="-1"), tmp_path / "run")
