"""The predict command, as a user runs it."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bert_jax.inference.bert import Bert
from bert_jax.inference.finetuned import FineTuned
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


def test_fill_mask(model, bert):
    finished = run(f"--model={model}", "fill-mask", "a [MASK] b [MASK].", "--top_k=3", "--json")
    assert finished.returncode == 0, finished.stderr
    masks = json.loads(finished.stdout)["masks"]
    expected = bert.fill_mask("a [MASK] b [MASK].", top_k=3)
    assert [[g["token"] for g in mask] for mask in masks] == [
        [g.token for g in m] for m in expected
    ]
    np.testing.assert_allclose(
        [[g["probability"] for g in mask] for mask in masks],
        [[g.probability for g in mask] for mask in expected],
        rtol=1e-4,
    )
    finished = run("fill-mask", f"--model={model}", "a [MASK].", "the")
    assert finished.returncode == 0, finished.stderr
    best = bert.fill_mask("a [MASK].", "the")[0][0]
    assert "[MASK]" in finished.stdout and best.token in finished.stdout
    assert f"{best.probability:.4f}" in finished.stdout


def test_next_sentence_and_score(model, bert):
    finished = run(f"--model={model}", "next-sentence", "a b", "c")
    assert f"{bert.next_sentence('a b', 'c'):.4f}" in finished.stdout, finished.stderr
    finished = run(f"--model={model}", "score", "--json", "--", "-a b")
    values, expected = json.loads(finished.stdout), bert.score("-a b")
    assert [entry["token"] for entry in values["tokens"]] == expected.tokens
    assert values["pseudo_log_likelihood"] == pytest.approx(expected.log_likelihood, rel=1e-4)
    assert values["pseudo_perplexity"] == pytest.approx(expected.perplexity, rel=1e-4)


def test_features(model, bert, tmp_path):
    source, output = tmp_path / "texts.jsonl", tmp_path / "f.npz"
    source.write_text(
        '{"text": "a b"}\n{"text": "c", "text_b": "d"}\n{"text": "%s"}\n' % ("e " * 99)
    )
    finished = run(
        f"--model={model}", "features", f"--input={source}", f"--output={output}", "--layers=-1,-2"
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == f"features of 3 texts are in {output}"
    assert finished.stderr == (
        f"warning: 1 texts are longer than 40 tokens, and cut to them; the first is {source}:3\n"
    )
    with np.load(output) as file:
        expected = bert.encode(["a b", ("c", "d")], layers=(-1, -2))
        np.testing.assert_allclose(file["features"][:2], expected, atol=1e-5)


def test_stopped_midway_it_leaves_nothing(model, tmp_path):
    source, output = tmp_path / "texts.jsonl", tmp_path / "f.npz"
    source.write_text('{"text": "a b c d e f"}\n' * 200_000)
    command = [sys.executable, "-m", "bert_jax.predict", f"--model={model}", "features"]
    command += [f"--input={source}", f"--output={output}"]
    process = subprocess.Popen(
        command, cwd=runs.ROOT, env=runs.environment(), stdout=subprocess.DEVNULL
    )
    while not list(tmp_path.glob("f.npz.*.partial")):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == [source]


def test_choices(tmp_path):
    formats.write(make_finetuned("multiple_choice"), tmp_path / "hf", "huggingface")
    choices = ["b c", "[d]", "e", "the."]
    expected = FineTuned(make_finetuned("multiple_choice")).choose("a", choices)
    path = f"--model={tmp_path / 'hf'}"
    finished = run(path, "choose", "--json", "a", *choices)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)["choices"]
    assert [(x["text"], x["index"]) for x in found] == [(x.text, x.index) for x in expected]
    assert found[0]["probability"] == pytest.approx(expected[0].probability, abs=1e-5)
    finished = run(path, "choose", "a", *choices)
    assert all(f"{x.probability:.4f}" in finished.stdout for x in expected), finished.stderr
    assert "it can choose" in command("predict", path, "classify", "a")


def test_letters_that_the_output_lacks_are_escaped(tmp_path, monkeypatch):
    formats.write(make_finetuned("token_classification", ("é",)), tmp_path / "hf", "huggingface")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    monkeypatch.setenv("PYTHONUTF8", "0")
    command = [sys.executable, "-m", "bert_jax.predict", f"--model={tmp_path / 'hf'}", "tag"]
    for flag in ([], ["--json"]):
        finished = subprocess.run(
            [*command, *flag, "a 😀"], cwd=runs.ROOT, env=runs.environment(), capture_output=True
        )
        assert finished.returncode == 0, finished.stderr
        if flag:
            words = json.loads(finished.stdout)["words"]
            assert [(x["word"], x["tag"]) for x in words] == [("a", "é"), ("😀", "é")]
        else:
            assert "é" in finished.stdout.decode("latin-1")
            assert b"\\U0001f600" in finished.stdout


def test_a_work_directory_by_its_step(tmp_path, bert):
    formats.write(make_pretrained(), tmp_path / "native", "bert_jax")
    finished = run(f"--model={tmp_path / 'native'}", "--step=0", "fill-mask", "a [MASK]", "--json")
    assert finished.returncode == 0, finished.stderr
    best = json.loads(finished.stdout)["masks"][0][0]["token"]
    assert best == bert.fill_mask("a [MASK]")[0][0].token


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "a command is missing"),
        ([f"--model={'x' * 5000}", "fill-mask", "a [MASK]"], "File name too long"),
        (["fill-mask", "a [MASK]"], "--model is missing"),
        (["--model=nothing_here", "fill-mask", "a [MASK]"], "does not exist"),
        (["--model=x", "fillmask", "a"], "did you mean fill-mask"),
        (["--model=x", "qqqq", "a"], "one of fill-mask"),
        (["--model=x", "fill-mask"], "takes TEXT [text_b] but was given 0"),
        (["--model=x", "next-sentence", "a"], "takes TEXT TEXT_B but was given 1"),
        (["--model=x", "choose", "a", "b"], "takes CONTEXT CHOICE CHOICE [...] but was given 2"),
        (["--model=x", "features", "a"], "takes no texts but was given 1"),
        (["--model=x", "features", "--output=f.npz"], "--input is missing"),
        (["--model=x", "score", "a", "--top_k=3"], "--top_k has no effect on score"),
        (["--model=x", "features", "--input=a", "--output=b", "--json"], "--json has no effect"),
        (["--modle=x", "score", "a"], "did you mean --model"),
        (["--model=x", "features", "--pooling=max"], "--pooling"),
    ],
)
def test_mistakes_in_the_flags(arguments, words):
    assert words in command("predict", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", ""], "the text is without a token"),
        (["score", "\udcff"], "not valid Unicode"),
        (["features", "--input=x", "--output=f.npz", "--layers=1,b"], "--layers=1,b must be"),
        (["attention", "a", "--output=none/x.html"], "there is no directory none"),
        (["attention", "a", "--output=x.html", "--max_length=0"], "max_length is 0"),
        (["classify", "a"], "has no head of a task"),
    ],
)
def test_mistakes_that_only_the_command_can_tell(model, arguments, words):
    assert words in command("predict", f"--model={model}", *arguments)


def test_a_head_that_is_not_there(tmp_path):
    from tests.interop.small_bert import edit_tensors

    formats.write(make_pretrained(), tmp_path / "hf", "huggingface")
    edit_tensors(tmp_path / "hf", lambda t: [t.pop(n) for n in list(t) if n.startswith("cls.")])
    path = f"--model={tmp_path / 'hf'}"
    assert "has no masked-LM head" in command("predict", path, "fill-mask", "a [MASK]")
    assert "has no next-sentence head" in command("predict", path, "next-sentence", "a", "b")


def test_bert_jax_is_light_and_needs_no_tensorflow(model):
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
