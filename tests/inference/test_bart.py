"""Texts that a BART generates, against `generate` of transformers."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_jax.base.errors import UserError
from bert_jax.inference import forward
from bert_jax.inference.bart import Bart
from bert_jax.inference.verbs import predict_file
from bert_jax.interop import formats
from bert_jax.interop.generation import generation_keys, search_of
from bert_jax.interop.weights import unflatten
from bert_jax.models.task_models import make_task_model
from bert_jax.tokenizers import CONVENTIONS, TokenRow
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer
from tests.golden.inputs import read_golden, section
from tests.interop.small_bert import same_weights

GOLDEN = read_golden("generation")
SEARCHES = json.loads(str(GOLDEN["bart_searches"]))


def write(directory, name="BartForConditionalGeneration", **config):
    """Writes the recorded BART, or one with a task head, as a directory of transformers."""
    directory.mkdir(parents=True)
    weights = section(GOLDEN, "bart_weights") | section(GOLDEN, f"{name}/weights")
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    named = {"model_type": "bart", "architectures": [name]}
    # `save_pretrained` writes these keys too.
    named |= {"pad_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": 2}
    config = named | json.loads(str(GOLDEN["bart"])) | config
    (directory / "config.json").write_text(json.dumps(config))
    return formats.read(directory)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return write(tmp_path_factory.mktemp("bart") / "hf")


@pytest.mark.parametrize("number", range(len(SEARCHES)), ids=lambda i: json.dumps(SEARCHES[i]))
def test_tokens_are_those_of_transformers(pretrained, number):
    """Rows of unequal lengths, in batches with padding and with rows that only fill them up."""
    search = search_of(
        generation_keys(pretrained),
        SEARCHES[number],
        model=pretrained.model,
        default_max_new_tokens=21,
        source="",
    )
    params = unflatten(pretrained.weights, pretrained.model_config)
    rows = [
        TokenRow(ids_L[: sum(mask_L)], int(sum(mask_L)))
        for ids_L, mask_L in zip(*section(GOLDEN, "bart_inputs").values(), strict=True)
    ]
    program = partial(forward.generated, pretrained.model_config, params, search=search)
    found = forward.run_in_batches(rows, program, max_length=21, source="")
    np.testing.assert_array_equal(found, GOLDEN[f"bart_tokens/{number}"])


@pytest.mark.parametrize("name", ["BartForSequenceClassification", "BartForQuestionAnswering"])
def test_logits_of_task_heads_are_those_of_transformers(name, tmp_path):
    pretrained = write(tmp_path / "hf", name, num_labels=3)
    head = pretrained.head
    model = make_task_model(head, len(pretrained.labels), pretrained.model_config)
    params = unflatten(pretrained.weights, pretrained.model_config)
    batch = section(GOLDEN, "bart_inputs")
    batch["token_type_ids"] = np.zeros_like(batch["input_ids"])
    outputs = model.apply({"params": params}, batch, deterministic=True)
    real = batch["attention_mask"] > 0
    for output, found in outputs.items():
        expected = GOLDEN[f"{name}/{output}"]
        if found.ndim == 2 and found.shape == real.shape:
            found, expected = found[real], expected[real]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    weights = dict(pretrained.weights)
    formats.write(pretrained, tmp_path / "again", "huggingface")
    assert same_weights(formats.read(tmp_path / "again").weights, weights)


@pytest.fixture(scope="module")
def bart(pretrained):
    special = CONVENTIONS["roberta"]
    tokens = [*special.first, *"abcdefghijklmnopqrstuvwxyz", *special.last]
    tokenizer = WordPieceTokenizer(
        tokens, special_tokens=special, lowercase=True, max_input_chars_per_word=200
    )
    return Bart(dataclasses.replace(pretrained, tokenizer=tokenizer))


def test_options_and_lists(bart):
    texts = ["a b c d e f", "x", "k l m n"]
    found = bart.generate(texts, num_beams=4, max_new_tokens=12)
    assert [bart.generate(text, num_beams=4, max_new_tokens=12) for text in texts] == found
    assert len(set(found)) == 3 and found != bart.generate(texts, max_new_tokens=12)
    short = bart.generate(texts, max_new_tokens=3)
    assert all(len(bart.tokenizer.encode_batch([text])[0]) <= 2 for text in short)
    # In `denoise`, a mask is the mask token; elsewhere it is text.
    masked = bart.rows(["a <mask> c"], masks=True)[0].input_ids_L
    assert bart.tokenizer.mask_id in masked
    assert bart.denoise("a <mask> c") != bart.generate("a <mask> c")
    assert bart.denoise("a b c d e f") == bart.generate("a b c d e f")


def test_what_a_bart_cannot_do_is_refused(bart):
    with pytest.raises(UserError, match="masks stand for any number of tokens: use denoise"):
        bart.fill_mask("a <mask>")
    with pytest.raises(UserError, match="max_new_tokens is 99; .* from 1 to 21"):
        bart.generate("a", max_new_tokens=99)
    with pytest.raises(UserError, match="no character that the tokenizer keeps"):
        bart.generate(["a", " "])
    with (
        pytest.warns(UserWarning, match="truncated"),
        pytest.raises(UserError, match=r"longer than 21 tokens, and 1 \[MASK\] in it would be cut"),
    ):
        bart.denoise("<mask> " + "a " * 30 + "<mask>")
    assert bart.encode("a b c").shape == (24,), "features are the encoder's"


def test_texts_are_no_longer_than_in_training(pretrained, bart):
    other = Bart(dataclasses.replace(pretrained, tokenizer=bart.tokenizer))
    other.max_length = other._trained_target_length = 8
    lengths = []
    other.run = lambda rows, program, tokens: (
        lengths.append(tokens) or [np.zeros(0, int)] * len(rows)
    )
    other.generate("a b c d e")
    with pytest.warns(UserWarning, match="max_new_tokens is 9, .* trained on texts of up to 8"):
        other.generate("a", max_new_tokens=9)
    assert lengths == [8, 9]


@pytest.mark.parametrize("num_beams", [1, 2])
def test_a_decoder_that_gives_nan_is_refused(pretrained, bart, num_beams):
    (name,) = [n for n in pretrained.weights if n.endswith("decoder/layer_0/output/bias")]
    bias_D = np.full_like(pretrained.weights[name], np.nan)
    damaged = dataclasses.replace(
        pretrained, tokenizer=bart.tokenizer, weights=pretrained.weights | {name: bias_D}
    )
    with pytest.raises(UserError, match="computes NaN: its weights are damaged"):
        Bart(damaged).generate(["a b"], num_beams=num_beams)


def test_lines_of_a_file(bart, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a b", "id": 7}\n{"text": "c d e"}\n')
    assert predict_file("generate", bart, source, output, num_beams=2) == 2
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert lines[0] == {"text": "a b", "id": 7, "prediction": bart.generate("a b", num_beams=2)}
    assert predict_file("denoise", bart, source, output) == 2
    assert json.loads(output.read_text().splitlines()[1])["prediction"] == bart.denoise("c d e")
