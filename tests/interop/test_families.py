"""Families as data: the classes of BERT's variants. test_new_variant.py has an outside family."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.families import load_family
from tests.interop.small_bert import (
    FAMILIES,
    copies,
    drop_tensors,
    edit_json,
    edit_tensors,
    make_finetuned,
    make_pretrained,
    make_tokenizer,
    same_weights,
)


def test_weights_without_a_tensor_are_left_out_and_a_family_can_be_named(tmp_path):
    pretrained = make_pretrained(terms=("masked_lm", "span_boundary"))
    pretrained.family, weights = "spanbert", copies(pretrained.weights)
    ours = str(tmp_path / "ours")
    formats.write(pretrained, ours, "bert_jax")
    assert same_weights(formats.read(ours).weights, weights)
    kept = {name: x for name, x in weights.items() if not name.startswith("sbo/")}
    for family, title in (("", "SpanBERT"), ("bert", "BERT")):
        output = tmp_path / title
        (warning,) = convert.convert(ours, str(output), "huggingface", family=family)
        assert "has no tensor for sbo/" in warning
        assert warning.count("sbo/") == len(weights) - len(kept)
        assert f"# {title}, L3" in (output / "README.md").read_text()
        assert same_weights(formats.read(output).weights, kept)
    with pytest.raises(UserError, match="family is 'brat'; it must be one of bert"):
        convert.convert(ours, str(tmp_path / "x"), "huggingface", family="brat")


@pytest.mark.parametrize("name", ["nomic_bert", "gte", "jina_v3", "eurobert", "esmc", "flaubert"])
def test_a_bare_encoder_is_read(name, tmp_path):
    """Released files often have an encoder's tensors without its prefix."""
    pretrained = make_pretrained(family=name)
    expected = copies(pretrained.weights)
    formats.write(pretrained, tmp_path, "huggingface")
    prefix = load_family(name).encoder_prefixes[0]

    def strip(tensors):
        for key in list(tensors):
            value = tensors.pop(key)
            if key.startswith(prefix):
                tensors[key.removeprefix(prefix)] = value

    edit_tensors(tmp_path, strip)
    found = formats.read(tmp_path).weights
    assert found and same_weights(found, {key: expected[key] for key in found})
    assert {key for key in expected if key.startswith("bert/encoder/")} <= found.keys()


@pytest.mark.parametrize(
    ("terms", "causal", "class_name"),
    [
        (("masked_lm", "next_sentence"), False, "BertForPreTraining"),
        (("masked_lm",), False, "BertForMaskedLM"),
        (("next_token",), True, "BertLMHeadModel"),
        (("span_boundary",), False, "BertModel"),
    ],
)
def test_the_class_follows_from_the_terms(tmp_path, terms, causal, class_name):
    pretrained = make_pretrained(terms=terms, causal=causal)
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == [class_name]
    assert config.get("is_decoder", False) == causal
    if class_name == "BertLMHeadModel":
        again = formats.read(tmp_path / "hf")
        assert again.terms == terms and again.model["causal"] and not again.warnings
        assert same_weights(again.weights, weights)
        again.complete()
        assert not again.warnings


SPECIAL_IDS = {
    "roberta": {"bos": 0, "pad": 1, "eos": 2},
    "albert": {"bos": 2, "pad": 0, "eos": 3},
    "bart": {"bos": 0, "pad": 1, "eos": 2, "decoder_start": 2, "forced_eos": 2},
}


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((name, {}) for name in FAMILIES), ("flaubert", {"norm": "pre", "hidden_act": "relu"})],
)
def test_family_is_detected_and_weights_keep_every_bit(tmp_path, family, changes):
    pretrained = make_pretrained(family=family, **changes)
    model, weights = dict(pretrained.model), copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    special = SPECIAL_IDS.get(family, {"pad": pretrained.tokenizer.pad_id})
    assert {key: config[f"{key}_token_id"] for key in special} == special
    again = formats.read(tmp_path / "hf")
    assert (again.family, again.terms, again.model) == (family, pretrained.terms, model)
    assert again.warnings == [] and same_weights(again.weights, weights)


def test_a_bart_of_an_old_file(tmp_path):
    """Its names have no prefix, and copies of the word embeddings are there."""
    pretrained = make_pretrained(family="bart")
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")

    def change(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        for side in ("encoder", "decoder"):
            tensors[f"{side}.embed_tokens.weight"] = tensors["shared.weight"]

    edit_tensors(tmp_path / "hf", change)
    edit_json(tmp_path / "hf" / "config.json", architectures=["BartModel"])
    again = formats.read(tmp_path / "hf")
    assert again.warnings == [] and same_weights(again.weights, weights)
    assert again.terms == ("denoising",)
    biased = lambda tensors: tensors["final_logits_bias"].fill(0.5)  # noqa: E731
    edit_tensors(tmp_path / "hf", biased)
    with pytest.raises(UserError, match="final_logits_bias must be zero in a BART"):
        formats.read(tmp_path / "hf")


def test_a_roberta_has_two_more_positions(tmp_path):
    pretrained = make_pretrained(family="roberta")
    table = copies(pretrained.weights)["bert/embeddings/position_embeddings"]
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    positions = exported["roberta.embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(positions, np.pad(table, ((2, 0), (0, 0))))
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["max_position_embeddings"] == len(positions) == 42


@pytest.mark.parametrize(
    ("family", "model", "message"),
    [
        ("roberta", {"hidden_act": "relu"}, "hidden_act of a test is 'relu'; a RoBERTa .* 'gelu'"),
        ("albert", {"embedding_size": 0}, "ALBERT must have it"),
        ("flaubert", {"hidden_act": "gelu_new"}, "'gelu_new'; a FlauBERT .* only 'gelu' or 'relu'"),
        ("flaubert", {"intermediate_size": 20}, "intermediate_size of a test is 20; .* only 48"),
        ("bart", {"num_decoder_layers": 0, "terms": ("masked_lm",)}, "BART must have it"),
        ("roberta", {"num_decoder_layers": 1}, "num_decoder_layers of a test is 1"),
        ("esm", {"token_dropout": 0.2}, "token_dropout of a test is 0.2; a ESM-2 .* 0.0 or 0.12"),
        ("gte", {"rope_theta": 0.0, "rope_scale": 1.0}, "rope_theta is 0; this family has rotary"),
        ("roberta", {"biasless": ("inner",)}, "biasless of a test is .*'inner'.* has only"),
    ],
)
def test_models_that_a_family_does_not_have(tmp_path, family, model, message):
    with pytest.raises(UserError, match=message):
        formats.write(make_pretrained(family=family, **model), tmp_path / "hf", "huggingface")


@pytest.mark.parametrize(
    ("family", "key", "value", "message"),
    [
        ("bart", "decoder_ffn_dim", 24, "decoder_ffn_dim is 24; it must be 20"),
        ("bart", "decoder_layers", 0, "num_decoder_layers is 0; the term denoising needs more"),
        ("bart", "scale_embedding", True, "scale_embedding is True; it must be False"),
        ("flaubert", "pre_norm", "both", "pre_norm is 'both'; it must be False or True"),
        ("modernbert", "rope_scaling", {"type": "linear"}, "type of the .* is 'linear'"),
        ("modernbert", "rope_parameters", {"x": {}}, "rope_parameters has x; it must have "),
        ("modernbert", "layer_types", 5, "layer_types is 5; it must name 5 layers"),
        ("electra", "summary_activation", None, "activation is None; it must be 'gelu'"),
        ("nomic_bert", "n_embd", 24, "n_embd is 24 but hidden_size is 12"),
        ("nomic_bert", "qkv_proj_bias", True, "qkv_proj_bias is True; it must be False"),
        ("nomic_bert", "rope_parameters", {"rope_type": "yarn"}, "rotary positions is 'yarn'"),
        ("esm", "position_embedding_type", "absolute", "is 'absolute'; it must be 'rotary'"),
        ("esm", "is_folding_model", True, "is_folding_model is True; it must be False"),
        ("esm", "emb_layer_norm_before", True, "emb_layer_norm_before is True; it must be False"),
        ("gte", "logn_attention_scale", True, "logn_attention_scale is True; it must be False"),
        ("gte", "hidden_act", "silu", "hidden_act is 'silu'; it must be 'gelu'"),
        ("gte", "head_dim", 6, "head_dim is 6; it must be 4"),
        (
            "gte",
            "rope_parameters",
            {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
            "partial_rotary_factor of the rotary positions is 0.5, which is not supported",
        ),
        ("eurobert", "clf_pooling", "mean", "clf_pooling is 'mean' but classifier_pooling is 'la"),
        ("eurobert", "hidden_size", None, "hidden_size is None; it must be a whole"),
        ("gte", "num_attention_heads", "4", "num_attention_heads is '4'; it must be a whole"),
        ("gte", "rope_parameters", [8.0], r"rope_parameters is \[8.0\]; it must be a dictionary"),
        ("gte", "rope_scaling", {"type": "linear"}, "factor of the rotary positions is None"),
        ("gte", "rope_scaling", {"type": "linear", "factor": 0}, "rotary positions is 0; it must"),
        (
            "gte",
            "rope_scaling",
            {"type": "ntk", "factor": 8.0, "mixed_b": 0.6},
            "mixed_b of the rotary positions is 0.6, which is not supported",
        ),
        ("modernbert", "rope_parameters", 5, "rope_parameters is 5; it must be a dictionary"),
        ("modernbert", "rope_scaling", {"mscale": 2.0}, "mscale of the rotary positions is 2.0"),
        ("nomic_bert", "rotary_head_dim", True, "rotary_head_dim is True; it must be False"),
        ("esm", "mask_token_id", None, "has no mask_token_id, which token_dropout needs"),
        ("bert", "per_layer_config", {"0": {}}, "per_layer_config gives layers sizes of their own"),
        ("xlm_roberta", "lora_adaptations", ["a"], "jinaai/jina-embeddings-v3-hf"),
    ],
)
def test_a_model_with_other_parts_is_refused(tmp_path, family, key, value, message):
    formats.write(make_pretrained(family=family), tmp_path / "hf", "huggingface")
    edit_json(tmp_path / "hf" / "config.json", **{key: value})
    with pytest.raises(UserError, match=message):
        formats.read(tmp_path / "hf")


def test_a_nomic_bert_of_its_authors(tmp_path):
    """Its names begin with bert., its keys are GPT-2's, and its head has no biases."""
    pretrained = make_pretrained(family="nomic_bert")
    weights, keys = copies(pretrained.weights), dict(pretrained.model)
    for name in ("mlm/transform/bias", "mlm/output_bias"):
        weights[name] = np.zeros_like(weights[name])
    formats.write(pretrained, tmp_path, "huggingface")

    def change(tensors):
        del tensors["cls.predictions.bias"], tensors["cls.predictions.transform.dense.bias"]
        for name in list(tensors):
            tensors[name.replace("nomic_bert.", "bert.")] = tensors.pop(name)

    edit_tensors(tmp_path, change)
    config = json.loads((tmp_path / "config.json").read_text())
    renamed = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "resid_pdrop": "hidden_dropout_prob",
        "attn_pdrop": "attention_probs_dropout_prob",
    }
    theirs = {old: config.pop(new) for old, new in renamed.items()}
    theirs |= {"embd_pdrop": 0.1, "rotary_emb_base": 300, "activation_function": "swiglu"}
    del config["hidden_act"], config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | theirs))
    again = formats.read(tmp_path)
    assert again.model == keys and again.warnings == [] and same_weights(again.weights, weights)


def test_a_eurobert_of_its_authors(tmp_path):
    formats.write(make_pretrained(family="eurobert"), tmp_path, "huggingface")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["classifier_pooling"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"clf_pooling": "bos"}))
    assert formats.read(tmp_path).model["classifier_pooling"] == "cls"


@pytest.mark.parametrize(
    ("family", "key"), [("nomic_bert", "use_rms_norm"), ("esm", "emb_layer_norm_before")]
)
def test_null_means_false(tmp_path, family, key):
    formats.write(make_pretrained(family=family), tmp_path, "huggingface")
    edit_json(tmp_path / "config.json", **{key: None})
    assert formats.read(tmp_path).warnings == []


@pytest.mark.parametrize("heads", [None, 3])
def test_as_many_heads_of_keys_as_of_queries(tmp_path, heads):
    pretrained = make_pretrained(family="esmc")
    formats.write(pretrained, tmp_path, "huggingface")
    edit_json(tmp_path / "config.json", num_key_value_heads=heads)
    assert formats.read(tmp_path).model["num_key_value_heads"] == 0


def test_a_gte_of_its_authors(tmp_path):
    """Its names begin with new., and a scale of 8 means a larger base as well."""
    pretrained = make_pretrained(family="gte")
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path, "huggingface")

    def change(tensors):
        for name in list(tensors):
            tensors[name.replace("gte.", "new.")] = tensors.pop(name)
        tensors["new.embeddings.rotary_emb.inv_freq"] = np.ones(2, np.float32)

    edit_tensors(tmp_path, change)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("rope_parameters")["factor"] == 1.5 and "rope_scale" not in config
    config |= {"rope_theta": 20000, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "new"}))
    again = formats.read(tmp_path)
    # Heads are 4 wide.
    expected = pretrained.model | {"rope_theta": 160_000.0, "rope_scale": 8.0 ** (2 / 4)}
    assert again.model == expected and same_weights(again.weights, weights)


# Dropouts of released models, and those that bert_jax lacks.
@pytest.mark.parametrize(
    ("family", "dropouts", "lost"),
    [
        ("bart", {"activation_dropout": 0.1, "classifier_dropout": 0.0}, "activation_dropout=0.1"),
        (
            "distilbert",
            {"dropout": 0.3, "qa_dropout": 0.1, "seq_classif_dropout": 0.2},
            "qa_dropout=0.1, seq_classif_dropout=0.2",
        ),
        ("modernbert", {"mlp_dropout": 0.1}, "mlp_dropout=0.1"),
        ("electra", {"summary_last_dropout": 0.1, "classifier_dropout": None}, ""),
    ],
)
def test_dropouts_that_are_not_ours_are_told(tmp_path, family, dropouts, lost):
    formats.write(make_finetuned("question_answering", family=family), tmp_path, "huggingface")
    assert formats.read(tmp_path).warnings == []
    edit_json(tmp_path / "config.json", **dropouts)
    warning = f"{tmp_path / 'config.json'}: bert_jax ignores {lost}, which only training uses"
    assert formats.read(tmp_path).warnings == ([warning] if lost else [])


def test_a_herbert_keeps_its_pooler_and_the_head_of_the_order(tmp_path):
    pretrained = make_pretrained(terms=("masked_lm", "three_way_order"))
    pretrained.family = "herbert"
    pretrained.tokenizer, weights = None, copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert tensors["cls.sso.sso_relationship.weight"].shape == (3, 12)
    # The tokenizer tells a HerBERT from a BERT.
    edit_json(tmp_path / "hf" / "config.json", tokenizer_class="HerbertTokenizerFast")
    again = formats.read(tmp_path / "hf")
    assert (again.family, again.terms) == ("herbert", ("masked_lm", "three_way_order"))
    assert same_weights(again.weights, weights)
    edit_json(tmp_path / "hf" / "config.json", tokenizer_class="BertTokenizer")
    again = formats.read(tmp_path / "hf")
    assert again.family == "bert" and "sso/dense/kernel" not in again.weights


def test_a_file_of_other_names_names_only_some(tmp_path):
    formats.write(make_pretrained(num_hidden_layers=12), tmp_path, "huggingface")
    edit_tensors(tmp_path, lambda tensors: drop_tensors(tensors, "bert.encoder."))
    with pytest.raises(UserError, match=r"missing: (\S+, ){2}\S+ and 189 more$"):
        formats.read(tmp_path)


def test_a_trained_head_for_contacts_is_left_out_with_a_warning(tmp_path):
    formats.write(make_pretrained(family="esm"), tmp_path, "huggingface")
    assert formats.read(tmp_path).warnings == []  # Zeros.
    name = "contact_head.regression.weight"
    edit_tensors(tmp_path, lambda tensors: tensors[f"esm.{name}"].fill(0.5))
    (warning,) = formats.read(tmp_path).warnings
    assert f"{name} are not used and are left out" in warning


@pytest.mark.parametrize(
    ("family", "more", "has_unk"),
    [
        ("bert", {}, True),
        ("gte", {"bos_token": "<s>", "eos_token": "</s>"}, True),
        ("jina_v3", {"bos_token": "<s>", "eos_token": "</s>"}, True),
        (
            "eurobert",
            {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
            False,
        ),
    ],
)
def test_exports_name_the_special_tokens_of_the_published_ones(tmp_path, family, more, has_unk):
    formats.write(make_pretrained(family=family), tmp_path, "huggingface")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = json.loads((tmp_path / name).read_text())
        assert {key: config[key] for key in ("bos_token", "eos_token") if key in config} == more
        assert ("unk_token" in config) == has_unk


def test_a_roberta_needs_its_special_tokens(tmp_path):
    pretrained = make_pretrained(family="roberta")
    pretrained.tokenizer = make_tokenizer()
    with pytest.raises(UserError, match="pad_token_id of a test is 0; a RoBERTa .* only 1"):
        formats.write(pretrained, tmp_path / "hf", "huggingface")
