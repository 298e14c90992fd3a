"""The four ways a run starts, and the weights and runs that are refused."""

import shutil

import jax
import numpy as np
import pytest

from bert_jax import convert, evaluate, start, train, workdir
from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.weights import flatten
from bert_jax.training.metrics import read_metrics
from bert_jax.training.trainer import Trainer
from tests.interop.small_bert import edit_tensors, same_weights
from tests.small_run import compiled_once, small_run, write_documents  # noqa: F401


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("texts"), 12)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, texts):
    """A finished run of six steps, a checkpoint at each of the last."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    train.train(small_run(texts, **{"checkpoint.every_steps": 1}), directory)
    return directory


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory, trained):
    output = tmp_path_factory.mktemp("converted") / "hf"
    assert convert.convert(str(trained), str(output), "huggingface") == []
    return output


def run_from(source, texts, **overrides):
    vocab = source / "vocab.txt"
    vocab = vocab if vocab.exists() else source / "tokenizer" / "vocab.txt"
    return small_run(texts, init_from=str(source), **({"data.vocab": str(vocab)} | overrides))


def weights_of(directory):
    return formats.read(directory).weights


@pytest.mark.parametrize("kind", convert.KINDS)
def test_weights_from_every_kind_begin_at_step_0(kind, trained, texts, tmp_path):
    convert.convert(str(trained), str(tmp_path / "converted"), kind)
    config = run_from(tmp_path / "converted", texts)
    tokenizer, _ = workdir.load_vocabulary(trained)
    trainer = Trainer.from_config(config)
    state = start.initial_state(config, trainer, tokenizer)
    assert int(state.step) == 0
    expected = weights_of(trained)
    assert same_weights(flatten(state.params, trainer.model_config), expected)
    moments = jax.tree.leaves(state.opt_state)
    assert not any(np.asarray(moment).any() for moment in moments)


def test_the_key_of_sinusoids_reaches_the_weights(texts):
    trainer = Trainer.from_config(small_run(texts, sinusoidal_positions=0.5))
    weights = flatten(trainer.init_state().params, trainer.model_config)
    half = trainer.model_config.hidden_size // 2
    first_row = weights["bert/embeddings/position_embeddings"][0]
    np.testing.assert_array_equal(first_row, [0.0] * half + [0.5] * half)


def test_a_run_begins_with_weights_and_goes_on_without_them(huggingface, texts, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(huggingface, source)
    shutil.copy(source / "vocab.txt", tmp_path / "vocab.txt")
    vocab = {"data.vocab": str(tmp_path / "vocab.txt")}
    train.train(run_from(source, texts, **vocab), tmp_path / "run")
    lines = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in lines][-1] == 6
    # Its own checkpoint comes before everything else: the weights may be gone.
    shutil.rmtree(source)
    config = small_run(texts, init_from=str(source), **vocab, **{"train.num_steps": 7})
    assert train.train(config, tmp_path / "run")["step"] == 7


def test_one_checkpoint_of_a_run_can_be_named(trained):
    steps = sorted(int(path.name) for path in (trained / "checkpoints").iterdir())
    assert len(steps) > 1
    older = weights_of(trained / "checkpoints" / str(steps[0]))
    assert not same_weights(older, weights_of(trained))
    assert formats.read(trained / "checkpoints" / str(steps[0])).training["step"] == steps[0]
    with pytest.raises(UserError, match="no checkpoint of step 77"):
        formats.read(trained / "checkpoints" / "77")


def test_scanned_layers_make_no_difference(trained, texts):
    config = run_from(trained, texts, scan_layers=True)
    trainer = Trainer.from_config(config)
    tokenizer, _ = workdir.load_vocabulary(trained)
    state = start.initial_state(config, trainer, tokenizer)
    assert "layers" in state.params["bert"]["encoder"]
    assert same_weights(flatten(state.params, trainer.model_config), weights_of(trained))


class TestRefusedWeights:
    """And afterwards the same work directory takes the right ones."""

    def refused(self, config, directory, message):
        with pytest.raises(UserError, match=message):
            train.train(config, directory)

    def test_without_a_vocabulary(self, huggingface, texts, tmp_path):
        config = run_from(huggingface, texts, **{"data.vocab": ""})
        self.refused(config, tmp_path / "run", f"--config.data.vocab={huggingface}/vocab.txt")
        train.train(run_from(huggingface, texts), tmp_path / "run")

    def test_another_vocabulary(self, huggingface, texts, tmp_path):
        lines = (huggingface / "vocab.txt").read_text().splitlines()
        (tmp_path / "vocab.txt").write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
        config = run_from(huggingface, texts, **{"data.vocab": str(tmp_path / "vocab.txt")})
        self.refused(config, tmp_path / "run", "another vocabulary: the entries differ")
        config = run_from(huggingface, texts, **{"data.lowercase": False})
        self.refused(config, tmp_path / "run", "another vocabulary: it has the options")
        train.train(run_from(huggingface, texts), tmp_path / "run")

    def test_another_model(self, huggingface, texts, tmp_path):
        overrides = {"model.intermediate_size": 24, "model.hidden_act": "relu"}
        config = run_from(huggingface, texts, **overrides)
        message = "--config.model.intermediate_size=16 --config.model.hidden_act=gelu"
        self.refused(config, tmp_path / "run", message)
        # Dropout is nothing of the weights'.
        config = run_from(huggingface, texts, **{"model.hidden_dropout_prob": 0.2})
        train.train(config, tmp_path / "run")

    def test_of_a_given_store(self, huggingface, trained, texts, tmp_path):
        store = {"data.vocab": "", "data.store": str(trained / "data")}
        train.train(run_from(huggingface, texts, **store), tmp_path / "run")

    def test_nothing_there(self, texts, tmp_path):
        config = small_run(texts, init_from=str(tmp_path / "nothing"))
        self.refused(config, tmp_path / "run", "nothing does not exist")


def test_the_model_card_tells_where_a_run_began(huggingface, texts, tmp_path):
    train.train(run_from(huggingface, texts), tmp_path / "run")
    convert.convert(str(tmp_path / "run"), str(tmp_path / "hf"), "huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert f"| init_from | {huggingface} |" in card
    assert "| steps | 6 |" in card and "| tokens a sequence, at the most | 16 |" in card


def test_a_lacking_head_is_announced(huggingface, texts, tmp_path, capsys):
    source = tmp_path / "source"
    shutil.copytree(huggingface, source)
    edit_tensors(source, lambda t: [t.pop(n) for n in list(t) if n.startswith("cls.seq")])
    train.train(run_from(source, texts), tmp_path / "run")
    assert "has no next-sentence head: initialised at random" in capsys.readouterr().out


def test_converted_weights_are_no_run_but_can_be_evaluated(huggingface, texts, tmp_path):
    converted = tmp_path / "converted"
    convert.convert(str(huggingface), str(converted), "bert_jax")
    with pytest.raises(UserError, match=f"--config.init_from={converted}"):
        train.train(small_run(texts), converted)
    results = evaluate.evaluate_workdir(converted, texts)
    assert results["step"] == 0 and results["mlm_loss"] > 0
    with pytest.raises(UserError, match="give --data"):
        evaluate.evaluate_workdir(converted)


class TestResumingAnotherRun:
    @pytest.fixture
    def earlier(self, trained, tmp_path):
        """The trained run as it was two steps before its end."""
        earlier = tmp_path / "earlier"
        shutil.copytree(trained, earlier)
        for step in (5, 6):
            shutil.rmtree(earlier / "checkpoints" / str(step))
        return earlier

    def test_ends_with_the_same_bits(self, earlier, trained, texts, tmp_path):
        config = small_run(texts, resume_from=str(earlier))
        assert train.train(config, tmp_path / "run")["step"] == 6
        assert same_weights(weights_of(tmp_path / "run"), weights_of(trained))
        steps = [line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line]
        assert min(steps) > 4

    def test_with_another_schedule(self, earlier, trained, texts, tmp_path):
        config = small_run(texts, resume_from=str(earlier), **{"schedule.peak_learning_rate": 0.5})
        train.train(config, tmp_path / "run")
        assert not same_weights(weights_of(tmp_path / "run"), weights_of(trained))

    @pytest.mark.parametrize(
        ("key", "value"),
        [("train.batch_size", 8), ("model.hidden_act", "relu"), ("optimizer.name", "lamb")],
    )
    def test_not_with_other_batches_or_another_model(self, key, value, earlier, texts, tmp_path):
        config = small_run(texts, resume_from=str(earlier), **{key: value})
        with pytest.raises(UserError, match=f"config.resume_from: in .* config.{key} is"):
            train.train(config, tmp_path / "run")

    def test_not_on_another_corpus(self, earlier, tmp_path):
        (tmp_path / "a").mkdir()
        other = write_documents(tmp_path / "a" / "texts", 13)
        config = small_run(other, resume_from=str(earlier))
        with pytest.raises(UserError, match="config.data.input|another corpus"):
            train.train(config, tmp_path / "run")

    def test_not_from_a_finished_run(self, trained, texts, tmp_path):
        with pytest.raises(UserError, match="is at step 6 already"):
            train.train(small_run(texts, resume_from=str(trained)), tmp_path / "run")

    def test_only_a_run_and_before_any_work(self, huggingface, texts, tmp_path):
        for other in (huggingface, tmp_path / "nothing"):
            config = small_run(texts, resume_from=str(other))
            with pytest.raises(UserError, match="no work directory of a run"):
                train.train(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_not_together_with_weights(self, trained, texts, tmp_path):
        config = small_run(texts, resume_from=str(trained), init_from=str(trained))
        with pytest.raises(UserError, match="both set"):
            train.train(config, tmp_path / "run")
