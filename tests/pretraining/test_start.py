"""The four ways in which a run starts, and the weights and runs that are refused."""

import shutil

import jax
import numpy as np
import pytest

from bert_jax import convert, prepare
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.commands.evaluate import as_workdir, evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop import formats
from bert_jax.interop.weights import flatten, unflatten
from bert_jax.pretraining import first_state
from bert_jax.pretraining.build import make_trainer
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from tests.interop.small_bert import edit_tensors, same_weights, write_google
from tests.small_run import after_step, interrupt, small_run, write_documents


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory, finished):
    output = tmp_path_factory.mktemp("converted") / "hf"
    assert convert.convert(str(finished), str(output), "huggingface") == []
    return output


def run_from(source, texts, **overrides):
    vocab = source / "vocab.txt"
    vocab = vocab if vocab.exists() else source / "tokenizer" / "vocab.txt"
    return small_run(texts, **{"init_from": str(source), "data.vocab": str(vocab)} | overrides)


def weights_of(directory):
    return formats.read(directory).weights


def begin(config, finished):
    """Returns the trainer and the state at step 0 of a run that begins with given weights."""
    tokenizer, _ = workdir.load_vocabulary(finished)
    trainer = make_trainer(config)
    pretrained = formats.read(config.init_from)
    weights = first_state.take_weights(config, pretrained, tokenizer)
    return trainer, trainer.state_of(unflatten(weights, trainer.model_config))


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("kind", ["bert_jax", "huggingface", "google"])
def test_weights_of_every_kind_begin_at_step_0(kind, finished, texts, tmp_path):
    if kind == "google":
        (tmp_path / "converted").mkdir()
        write_google(formats.read(finished), tmp_path / "converted")
    else:
        convert.convert(str(finished), str(tmp_path / "converted"), kind)
    trainer, state = begin(run_from(tmp_path / "converted", texts), finished)
    assert int(state.step) == 0
    assert same_weights(flatten(state.params, trainer.model_config), weights_of(finished))
    assert not any(np.asarray(moment).any() for moment in jax.tree.leaves(state.opt_state))


def test_single_checkpoint_of_a_run_can_be_read(finished):
    steps = sorted(int(path.name) for path in (finished / "checkpoints").iterdir())
    assert len(steps) > 1
    older = finished / "checkpoints" / str(steps[0])
    assert not same_weights(weights_of(older), weights_of(finished))
    assert formats.read(older).training["step"] == steps[0]
    with pytest.raises(
        UserError, match="no complete checkpoint of step 77 .*the other steps: 2, 4, 6"
    ):
        formats.read(finished / "checkpoints" / "77")


def test_a_run_begins_with_weights_and_continues_without_them(huggingface, texts, tmp_path, capsys):
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(huggingface, source)
    edit_tensors(source, lambda t: [t.pop(n) for n in list(t) if n.startswith("cls.seq")])
    shutil.copy(source / "vocab.txt", tmp_path / "vocab.txt")
    vocab = {"data.vocab": str(tmp_path / "vocab.txt")}
    with after_step(5, interrupt), pytest.raises(KeyboardInterrupt):
        pretrain(run_from(source, texts, **vocab), run)
    printed = capsys.readouterr().out
    assert "has no next-sentence head: initialized at random" in printed
    assert f"starting with the weights of {source} in {run}" in printed
    # The run resumes from its own checkpoint, so the initial weights may be missing.
    shutil.rmtree(source)
    config = small_run(texts, init_from=str(source), **vocab)
    assert pretrain(config, run)["step"] == 6
    assert "continuing from step 4" in capsys.readouterr().out
    # The model card names the initial weights.
    convert.convert(str(run), str(tmp_path / "hf"), "huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| init_from | source |" in card
    # The folders of the user's files are private.
    assert str(tmp_path) not in (tmp_path / "hf" / "bert_jax_training.json").read_text()
    assert "| steps | 6 |" in card and "| max_seq_length | 16 |" in card
    # The model has 512 positions, but neither run had longer sequences than 16.
    assert files.read_json(tmp_path / "hf" / "tokenizer_config.json")["model_max_length"] == 16


def test_weights_determine_the_model_and_the_vocabulary(
    huggingface, finished, texts, tmp_path, capsys
):
    source, run = tmp_path / "source", tmp_path / "run"
    shutil.copytree(huggingface, source)
    (source / "vocab.txt").unlink()
    vocab = str(run / "initial_vocabulary")
    file = small_run(texts, **{"model.hidden_size": 64, "data.lowercase": False})
    config = small_run(texts, init_from=str(source), **{"model.num_hidden_layers": 3})
    assert pretrain(config, run, ConfigSource("x.py", file))["step"] == 6
    stored = workdir.load_config(run)
    assert (stored.model.num_hidden_layers, stored.data.vocab) == (1, vocab)
    assert (
        workdir.load_vocabulary(run)[0].fingerprint == formats.read(finished).tokenizer.fingerprint
    )
    printed = capsys.readouterr().out
    assert "config.model.hidden_size is 16, not 64 as in x.py" in printed
    assert "config.data.lowercase is true, not false as in x.py" in printed
    # The weights are scored before training.
    assert [line["step"] for line in read_metrics(run) if "eval_mlm_loss" in line] == [0, 6]
    pretrain(config, run)
    assert "This run is finished" in capsys.readouterr().out


class TestRefusedWeights:
    """After a refusal, the same work directory can be used with the right weights."""

    def test_wrong_vocabulary_or_path_is_refused(self, huggingface, finished, texts, tmp_path):
        lines = (huggingface / "vocab.txt").read_text().splitlines()
        swapped = tmp_path / "vocab.txt"
        swapped.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
        shorter = tmp_path / "shorter.txt"
        shorter.write_text("\n".join(lines[:-1]) + "\n")
        other = tmp_path / "store"
        prepare.prepare(small_run(texts).data, 150, other)
        for overrides, message in (
            ({"data.vocab": str(swapped)}, "a different vocabulary from .*: the tokens differ"),
            (
                {"data.vocab": str(shorter)},
                "a different vocabulary from .*: it has 199 tokens, not 200",
            ),
            ({"init_from": str(tmp_path / "nothing")}, "nothing does not exist"),
            (
                {"data.vocab": "", "data.store": str(other)},
                f"the token store {other} has a different vocabulary from the weights of",
            ),
        ):
            config = run_from(huggingface, texts, **overrides)
            with pytest.raises(UserError, match=message):
                pretrain(config, tmp_path / "run", ConfigSource("x.py", config, set(overrides)))
            assert not (tmp_path / "run").exists()
        # A token store contains the vocabulary.
        store = {"data.vocab": "", "data.store": str(finished / "data")}
        pretrain(run_from(huggingface, texts, **store), tmp_path / "run")


def test_converted_weights_cannot_be_resumed_but_evaluated(huggingface, texts, tmp_path):
    converted = tmp_path / "converted"
    convert.convert(str(huggingface), str(converted), "bert_jax")
    with pytest.raises(UserError, match=f"--config.init_from={converted}"):
        pretrain(small_run(texts), converted)
    results = evaluate_workdir(converted, texts)
    assert results["step"] == 0 and results["mlm_loss"] > 0
    with pytest.raises(UserError, match="or the model comes from elsewhere; give --data"):
        evaluate_workdir(converted)
    with pytest.raises(UserError, match=f"^{huggingface}/checkpoints/3 does not exist"):
        as_workdir(huggingface, 3).__enter__()
    with as_workdir(huggingface) as directory:
        assert evaluate_workdir(directory, texts) == results
    assert not directory.exists()


def test_any_checkpoint_can_be_evaluated(finished):
    with as_workdir(finished, 4) as directory:
        assert directory == finished
    assert evaluate_workdir(finished, step=4)["step"] == 4


class TestResumingAnotherRun:
    @pytest.fixture(scope="class")
    def earlier(self, finished, tmp_path_factory):
        """Returns the trained run as it was two steps before its end."""
        earlier = tmp_path_factory.mktemp("earlier") / "run"
        shutil.copytree(finished, earlier)
        shutil.rmtree(earlier / "checkpoints" / "6")
        return earlier

    def test_result_is_bit_identical(self, earlier, finished, texts, tmp_path):
        config = small_run(texts, resume_from=str(earlier))
        files.write_json(earlier / workdir.INITIAL_TRAINING, {"initial_max_length": 24})
        assert pretrain(config, tmp_path / "run")["step"] == 6
        assert formats.read(tmp_path / "run").max_length == 24
        assert same_weights(weights_of(tmp_path / "run"), weights_of(finished))
        steps = [line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line]
        assert min(steps) > 4

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("train.batch_size", 8),
            ("model.hidden_act", "relu"),
            ("optimizer.name", "lamb"),
            ("optimizer.bias_correction", False),
        ],
    )
    def test_batches_model_and_optimizer_may_not_change(self, key, value, earlier, texts, tmp_path):
        config = small_run(texts, resume_from=str(earlier), **{key: value})
        with pytest.raises(UserError, match=f"config.resume_from: in .* config.{key} is"):
            pretrain(config, tmp_path / "run")

    def test_corpus_may_not_change(self, earlier, tmp_path):
        config = small_run(write_documents(tmp_path / "texts", 13), resume_from=str(earlier))
        with pytest.raises(UserError, match="another corpus"):
            pretrain(config, tmp_path / "run")

    def test_runs_that_cannot_be_resumed(self, finished, huggingface, texts, tmp_path):
        for overrides, message in (
            ({"resume_from": str(finished)}, "is already at step 6.*nothing is left to do"),
            ({"resume_from": str(huggingface)}, "is not the work directory of a run"),
            ({"resume_from": str(tmp_path / "nothing")}, "is not the work directory of a run"),
        ):
            with pytest.raises(UserError, match=message):
                pretrain(small_run(texts, **overrides), tmp_path / "run")
        assert not (tmp_path / "run" / "config.json").exists()
