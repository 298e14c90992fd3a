"""The command `predict`."""

import json
import subprocess
import sys

import numpy as np
import pytest

import bert_jax
from bert_jax.inference.bert import Bert
from bert_jax.inference.finetuned import FineTuned
from bert_jax.inference.verbs import VERBS, predict_file
from bert_jax.interop import formats
from tests import runs
from tests.interop.small_bert import make_finetuned, make_pretrained
from tests.refusals import command


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "hf"
    formats.write(make_pretrained(), path, "huggingface")
    return path


@pytest.fixture(scope="module")
def bert():
    return Bert(make_pretrained())


def run(*arguments):
    return runs.run([sys.executable, "-m", "bert_jax.predict", *map(str, arguments)])


def asked(*arguments):
    """Runs a command with --json; returns the object that it prints."""
    finished = run(*arguments, "--json")
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_fill_mask(model, bert):
    finished = run("fill-mask", f"--model={model}", "a [MASK] b [MASK].", "the", "--top_k=3")
    assert finished.returncode == 0, finished.stderr
    for mask in bert.fill_mask("a [MASK] b [MASK].", "the", top_k=3):
        for guess in mask:
            assert guess.token in finished.stdout
            assert f"{guess.probability:.4f}" in finished.stdout


def test_next_sentence_and_score(model, bert):
    finished = run(f"--model={model}", "next-sentence", "a b", "c")
    assert f"is next: {bert.next_sentence('a b', 'c'):.4f}" in finished.stdout, finished.stderr
    finished = run(f"--model={model}", "score", "--", "-a b")
    assert f"pseudo perplexity: {bert.score('-a b').perplexity:.4f}" in finished.stdout


def test_features(model, bert, tmp_path):
    source, output = tmp_path / "texts.jsonl", tmp_path / "f.npz"
    source.write_text(
        '{"text": "a b"}\n{"text": "c", "text_b": "d"}\n{"text": "%s"}\n' % ("e " * 99)
    )
    finished = run(
        f"--model={model}", "features", f"--input={source}", f"--output={output}", "--layers=-1,-2"
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == (
        f"features (mean, not normalized) of 3 texts are in {output}"
    )
    assert finished.stderr == (
        f"warning: 1 of 3 texts are truncated to 40 tokens; the first is {source}:3\n"
    )
    with np.load(output) as file:
        expected = bert.encode(["a b", ("c", "d")], layers=(-1, -2))
        np.testing.assert_allclose(file["features"][:2], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("head", "labels", "words", "example"),
    [
        ("sequence_classification", ("x", "y"), ["classify", "a"], {"text": "a"}),
        ("multiple_choice", (), ["choose", "a", "b", "c"], {"context": "a", "choices": ["b", "c"]}),
        (
            *("sequence_classification", (), ["rerank", "a", "b", "c d e"]),
            {"query": "a", "documents": ["b", "c d e"]},
        ),
    ],
)
def test_a_command_line_is_a_file_of_one_example(tmp_path, head, labels, words, example):
    formats.write(make_finetuned(head, labels), tmp_path / "hf", "huggingface")
    (tmp_path / "x.jsonl").write_text(json.dumps(example))
    bert, paths = bert_jax.load(tmp_path / "hf"), (tmp_path / "x.jsonl", tmp_path / "y.jsonl")
    predict_file(VERBS[words[0]], bert, *paths)
    found = asked(f"--model={tmp_path / 'hf'}", *words)
    assert found == json.loads((tmp_path / "y.jsonl").read_text())
    assert example.items() < found.items()


def test_choices_are_shown_by_their_texts(tmp_path):
    formats.write(make_finetuned("multiple_choice"), tmp_path / "hf", "huggingface")
    finished = run(f"--model={tmp_path / 'hf'}", "choose", "a", "b c", "[d]")
    for choice in FineTuned(make_finetuned("multiple_choice")).choose("a", ["b c", "[d]"]):
        assert f"{choice.text:5} │ {choice.probability:.4f}" in finished.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model=x"], "a command is missing"),
        (["fill-mask", "a [MASK]"], "--model is missing"),
        (["--model=nothing_here", "fill-mask", "a [MASK]"], "hf download NAME"),
        (["--model=x", "fillmask", "a"], "it must be one of fill-mask, next-sentence, "),
        (["--model=x", "next-sentence", "a"], "missing a required argument: 'text_b'"),
        (["--model=x", "features", "a"], "features: too many positional arguments"),
        (["--model=x", "detect", "--input=x"], "--output is missing"),
        (["--model=x", "features", "--output=f.npz"], "--input is missing"),
        (["--model=x", "score", "a", "--top_k=3"], "--top_k has no effect on score"),
    ],
)
def test_mistakes_in_the_flags(arguments, words):
    assert words in command("predict", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attention", "a", "--output=x.png"], "FILE.html"),
        (["attention", "a", "--output=x.html", "--max_length=0"], "max_length is 0"),
        (["classify", "a"], "has no task head"),
    ],
)
def test_mistakes_that_the_commands_detect(model, arguments, words):
    assert words in command("predict", f"--model={model}", *arguments)


def test_import_is_light_and_inference_needs_no_tensorflow(model):
    code = f"""
import sys
import bert_jax, bert_jax.predict
print(sorted({{m.split('.')[0] for m in sys.modules}} & {{"jax", "flax", "tensorflow", "orbax"}}))
bert = bert_jax.load({str(model)!r})
bert.fill_mask("a [MASK]"), bert.encode(["a"]), bert.score("a")
import bert_jax.inference.features
print(sorted(m for m in sys.modules if m.split(".")[0].startswith("tensorflow")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=runs.ROOT,
        env=runs.environment(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]
