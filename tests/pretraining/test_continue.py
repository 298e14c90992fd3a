"""A trained model continued on new text: its recipe, added tokens, and what it forgets."""

import glob
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from bert_jax import convert, load_config, prepare, tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.commands.complete_config import complete_config
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.commands.pretrain import pretrain
from bert_jax.commands.recipe import recipe_of
from bert_jax.config import flatten, validate
from bert_jax.config.command_line import ConfigSource
from bert_jax.interop import formats
from bert_jax.pretraining import first_state
from bert_jax.store.heldout import HeldOut
from bert_jax.tokenizers import CONVENTIONS, training
from bert_jax.tokenizers.extension import replaced_pieces
from bert_jax.training import workdir
from bert_jax.training.metrics import read_metrics
from tests.interop.small_bert import make_pretrained, make_tokenizer, same_weights
from tests.small_run import small_run, train_with_interruption, write_documents

NEW_TEXT = (
    "The kinase phosphorylates the receptor. A phosphatase removes what the kinase adds. "
    "Nobody knew the receptor of the hill.\n\n"
)
TABLE = "bert/embeddings/word_embeddings"


@pytest.fixture(scope="module")
def source(finished, tmp_path_factory):
    """Returns a trained model of transformers whose vocabulary ends with two placeholders."""
    source = tmp_path_factory.mktemp("source") / "hf"
    pretrained = formats.read(finished)
    old = pretrained.tokenizer
    tokens = [token.replace("[unused", "unseen").rstrip("]") for token in old.tokens]
    tokens[:5], tokens[-2:] = old.tokens[:5], ["[unused0]", "[unused1]"]
    pretrained.tokenizer = type(old)(tokens, lowercase=True, max_input_chars_per_word=200)
    source.mkdir()
    formats.write(pretrained, source, "huggingface")
    return source


@pytest.fixture(scope="module")
def new_texts(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("new"), 12, NEW_TEXT * 4)


def continued(source, new_texts, **overrides):
    overrides = {"data.max_sentence_tokens": 8} | overrides
    config = small_run(new_texts, load_config(f"continue:{source}"), **overrides)
    with config.unlocked():
        config.dtype = "float32"
    return config


@pytest.fixture(scope="module")
def run(source, new_texts, texts, tmp_path_factory):
    """Returns a finished run with five added tokens that scores the old text too."""
    directory = tmp_path_factory.mktemp("continued") / "run"
    other = {"data.add_tokens": "5", "eval.other_text": (texts,)}
    pretrain(continued(source, new_texts, **other), directory)
    return directory


def test_added_tokens_begin_as_means_and_old_ids_stay(source, run):
    config, tokenizer = workdir.load_config(run), workdir.load_vocabulary(run)[0]
    pretrained = formats.read(source)
    old, before = pretrained.tokenizer, pretrained.weights[TABLE]
    assert config.model.vocab_size == tokenizer.vocab_size == old.vocab_size + 3
    added = replaced_pieces(old, tokenizer)
    assert sorted(added) == [198, 199, 200, 201, 202]
    assert {tokenizer.tokens[i] for i in added} >= {"kinase", "phosphorylates", "receptor"}
    table = first_state.take_weights(config, pretrained, tokenizer)[TABLE]
    for i, row in enumerate(table):
        expected = before[added[i]].mean(axis=0) if i in added else before[i]
        np.testing.assert_array_equal(row, expected)


def test_the_export_has_the_tokens_of_the_run(run, tmp_path):
    ours = workdir.load_vocabulary(run)[0]
    assert convert.convert(str(run), str(tmp_path / "hf"), "huggingface") == []
    exported = formats.read(tmp_path / "hf")
    assert exported.tokenizer.fingerprint == ours.fingerprint
    assert exported.weights[TABLE].shape[0] == ours.vocab_size
    library = LibraryTokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    text = "The kinase and two kinases: a receptor."
    ids = library.encode(text, add_special_tokens=False).ids
    assert ids == ours.encode_batch([text])[0].tolist() and ours.ids["kinase"] in ids


def test_both_texts_are_scored_before_and_after(run, texts):
    results, lines = files.read_json(run / "results.json"), read_metrics(run)
    first, last = [line for line in lines if "eval_mlm_loss" in line]
    assert (first["step"], last["step"]) == (0, 6)
    for name in ("mlm_loss", "nsp_loss", "mlm_loss_per_character", "num_sequences"):
        for prefix in ("", "other_"):
            assert results["before"][prefix + name] == first[f"eval_{prefix}{name}"]
            assert results[prefix + name] == last[f"eval_{prefix}{name}"]
    # The old text is the one that `evaluate` scores.
    for name, value in evaluate_workdir(run, texts).items():
        if name.startswith(("mlm", "nsp")):
            assert results[f"other_{name}"] == pytest.approx(value, rel=1e-5), name
    page = (run / "report.html").read_text()
    assert "held-out text, initial weights" in page and "other text, end" in page


@pytest.mark.slow
def test_guesses_of_a_random_head_are_not_shown(source, run, new_texts, tmp_path):
    pretrained = formats.read(source)
    pretrained.weights = {k: v for k, v in pretrained.weights.items() if k.startswith("bert/")}
    pretrained.terms = ()
    formats.write(pretrained, tmp_path / "source", "huggingface")
    pretrain(continued(tmp_path / "source", new_texts), tmp_path / "run")
    for directory, has_head in ((run, True), (tmp_path / "run", False)):
        shown = {x["step"]: "eval_filled_texts" in x for x in read_metrics(directory)}
        assert shown[0] == has_head and shown[6]


def test_the_loss_per_character_is_that_of_the_text(run, texts, new_texts):
    results, tokenizer = files.read_json(run / "results.json"), workdir.load_vocabulary(run)[0]
    for prefix, pattern in (("", new_texts), ("other_", texts)):
        documents = [Path(name).read_text() for name in sorted(glob.glob(pattern))]
        if not prefix:
            documents = [text for i, text in enumerate(documents) if i in HeldOut(0.2)]
        tokens = sum(map(len, tokenizer.encode_batch([t.replace("\n", " ") for t in documents])))
        expected = results[f"{prefix}mlm_loss"] * tokens / sum(map(len, documents))
        assert results[f"{prefix}mlm_loss_per_character"] == pytest.approx(expected)


def test_a_killed_run_continues_to_the_same_bits(source, new_texts, texts, run, tmp_path):
    config = continued(source, new_texts, **{"data.add_tokens": "5", "eval.other_text": (texts,)})
    train_with_interruption(config, tmp_path / "run", 3)
    assert same_weights(formats.read(tmp_path / "run").weights, formats.read(run).weights)
    one, other = (files.read_json(path / "results.json") for path in (tmp_path / "run", run))
    assert one["before"] == other["before"] and one["other_mlm_loss"] == other["other_mlm_loss"]
    # The model that it began with is needed no more, and neither is a flag.
    stored = workdir.load_config(tmp_path / "run")
    pretrain(stored, tmp_path / "run", ConfigSource("config.json", stored, is_stored=True))


def test_the_other_text_is_not_trained_on(source, new_texts, tmp_path):
    one = Path(new_texts).parent / "3.txt"
    config = continued(source, new_texts, **{"eval.other_text": (str(one),)})
    message = f"other_text: it is {one} and config.data.input is .*, which both have {one}: the m"
    with pytest.raises(UserError, match=message.replace("*.txt", "[*].txt")):
        pretrain(config, tmp_path / "run")


def test_a_prepared_store_brings_its_tokens(source, new_texts, run, tmp_path):
    config = continued(source, new_texts, **{"data.add_tokens": "5"})
    config.data.vocab = str(source / "vocab.txt")
    prepare.prepare(config.data, 203, tmp_path / "store")
    config = continued(source, new_texts, **{"data.store": str(tmp_path / "store")})
    completed = complete_config(config, tmp_path / "run", ConfigSource("x.py", config))[0]
    assert (completed.data.add_tokens, completed.model.vocab_size) == ("5", 203)
    ours, theirs = workdir.load_vocabulary(run)[0], tokenizers.load(tmp_path / "store/tokenizer")
    assert ours.fingerprint == theirs.fingerprint


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            {"model.vocab_size": 300, "data.add_tokens": "5"},
            "config.model.vocab_size is 300, but the weights of .* have 203: set",
        ),
        ({"data.add_tokens": "900"}, "is 900, but the text has only .* tokens to add that occur"),
        ({"eval.other_text": ("no/*.txt",)}, "config.eval.other_text: .*no/\\*.txt"),
    ],
)
def test_contradictions_are_refused(source, new_texts, tmp_path, overrides, message):
    config = continued(source, new_texts, **overrides)
    origin = ConfigSource("continue", load_config(f"continue:{source}"), frozenset(overrides))
    with pytest.raises(UserError, match=message):
        pretrain(config, tmp_path / "run", origin)


class TestRecipe:
    @pytest.mark.parametrize(
        "family, expected",
        [
            ("bert", {"objective.terms": ("masked_lm", "next_sentence"), "data.rows": "pairs"}),
            ("roberta", {"objective.terms": ("masked_lm",), "data.rows": "full_sentences"}),
            ("albert", {"data.pair_labels": "order", "data.corruption": "ngrams"}),
            ("modernbert", {"data.masked_lm_prob": 0.3, "data.rows": "fitted_documents"}),
            # The teacher of its own recipe is not at hand.
            ("distilbert", {"objective.terms": ("masked_lm",), "objective.weights": (2.0,)}),
        ],
    )
    def test_of_a_released_model_is_its_familys(self, family, expected):
        recipe = recipe_of(make_pretrained(family=family))
        assert expected.items() <= dict(flatten(recipe)).items()

    def test_of_an_own_model_is_its_runs(self, source, tmp_path):
        pretrained = formats.read(source)
        pretrained.training["config"]["data"]["masked_lm_prob"] = 0.25
        formats.write(pretrained, tmp_path / "source", "huggingface")
        config = load_config(f"continue:{tmp_path / 'source'}")
        assert config.data.masked_lm_prob == 0.25 and config.data.rows == "pairs"
        assert {key: config.model[key] for key in pretrained.model} == pretrained.model

    def test_typed_values_need_only_fit_the_model(self, tmp_path):
        pretrained = make_pretrained(family="modernbert", max_position_embeddings=1024)
        pretrained.tokenizer = make_tokenizer()
        formats.write(pretrained, tmp_path / "source", "bert_jax")
        config = load_config(f"continue:{tmp_path / 'source'}")
        origin = ConfigSource("continue", config.copy_and_resolve_references())
        config.data.rows = "segments"
        config.train.stages[0].update(max_seq_length=1024, rope_theta=100.0)
        validate(config, is_given=True)
        completed = complete_config(config, tmp_path / "run", origin)[0]
        assert completed.data.rows == "segments"
        assert completed.objective.terms == ("masked_lm",)
        config.data.masked_lm_prob = 7.0
        with pytest.raises(UserError, match="config.data.masked_lm_prob is 7.0; it must be"):
            validate(config, is_given=True)

    @pytest.mark.parametrize(
        "name, words",
        [
            ("continue", "--config=continue names no model: write --config=continue:MODEL"),
            ("continue:no/model", "no/model does not exist; give the model's directory or"),
        ],
    )
    def test_needs_a_model(self, name, words):
        with pytest.raises(UserError, match=words):
            load_config(name)

    def test_needs_the_generator_of_an_electra(self):
        with pytest.raises(UserError, match="without its generator.* as discriminator and generat"):
            recipe_of(make_pretrained(family="electra"))

    def test_without_a_recipe(self):
        pretrained = make_pretrained(terms=("next_token",), causal=True)
        with pytest.raises(
            UserError, match="no config belongs to .* with config.model.causal: write"
        ):
            recipe_of(pretrained)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["modernbert", "roberta", "albert", "electra"])
def test_other_families_are_continued_with_added_tokens(family, tmp_path):
    is_electra = family == "electra"
    model = {"num_hidden_layers": 2} | ({"generator_size": 1 / 3} if is_electra else {})
    tokenizer = None
    if family in ("roberta", "modernbert"):
        tokenizer = training.train(
            "byte_bpe", [" the the"], vocab_size=263, special_tokens=CONVENTIONS[family]
        )
    if family == "albert":
        tokenizer = training.train(
            "sentencepiece",
            ["the bead faced a cage. "] * 5,
            vocab_size=16,
            lowercase=True,
            sentencepiece_rules="albert",
            special_tokens=CONVENTIONS["albert"],
        )
    if tokenizer:
        model["vocab_size"] = tokenizer.vocab_size
    terms = ("generator", "replaced_token") if is_electra else ()
    pretrained = make_pretrained(family=family, terms=terms, **model)
    pretrained.tokenizer = tokenizer or pretrained.tokenizer
    size, names = pretrained.model["vocab_size"], set(pretrained.weights)
    formats.write(pretrained, tmp_path / "source", "huggingface")
    new_texts = write_documents(tmp_path / "texts", 12, "the bead faced a cage. " * 20)
    config = continued(
        tmp_path / "source", new_texts, **{"data.add_tokens": "2", "train.num_steps": 2}
    )
    with config.unlocked():
        config.eval.max_sequences = 4
        # Rows of several documents need more predictions.
        config.train.stages[0].max_predictions_per_seq = 0
    pretrain(config, tmp_path / "run")
    stored, trained = workdir.load_config(tmp_path / "run"), formats.read(tmp_path / "run")
    assert (stored.family, stored.model.vocab_size) == (family, size + 2)
    # The bytes of a vocabulary without merges are joined first.
    words = {"ac", "be"} if family in ("roberta", "modernbert") else {"bead", "faced", "cage"}
    if family == "albert":
        words = {"▁" + word for word in words}
    assert set(trained.tokenizer.tokens[-2:]) <= words
    assert set(trained.weights) == names
    convert.convert(str(tmp_path / "run"), str(tmp_path / "exported"), "huggingface")
    assert same_weights(formats.read(tmp_path / "exported").weights, trained.weights)
