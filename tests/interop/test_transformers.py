"""Exports loaded by `transformers` itself, and its directories loaded here.

CI has version 5. Most of these tests also pass with version 4.57, which lacks some families.
"""

import inspect
import json
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import convert
from bert_jax.base.errors import UserError
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.families import FAMILIES, load_family
from bert_jax.interop.model_keys import current_keys, read_family_keys
from bert_jax.interop.weights import unflatten
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import CONVENTIONS
from bert_jax.tokenizers.protein import ESM_TOKENS, ProteinTokenizer
from tests.golden.inputs import FOLDER
from tests.interop.small_bert import (
    HEADS,
    LABELS,
    copies,
    make_finetuned,
    make_pretrained,
    make_tokenizer,
    same_weights,
)

pytestmark = pytest.mark.outside
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The baddest of cabs, faced by a dead beige bead.",
    "Ébahi ! naïve façade",
    "中文 text — “quoted” — abc",
    "a  tab\tand\nnew lines, a zero​width",
    "x" * 150,
]
SIZES = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 20, "max_position_embeddings": 40}
# A decoder of another depth.
BART = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3}
BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
BART |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 20)
FLAUBERT = {"emb_dim": 12, "n_layers": 3, "n_heads": 3, "max_position_embeddings": 40}
MODERNBERT = {"local_attention": 6, "num_hidden_layers": 5}
MODERNBERT |= {f"{name}_token_id": i for i, name in enumerate(("pad", "cls", "sep", "bos", "eos"))}
# A ModernBERT without local layers.
GLOBAL = {"global_every": 1, "local_attention": 0, "local_rope_theta": 0.0}
PAIR_LOGITS = {"nsp": "seq_relationship_logits", "sop": "sop_logits"}


def random_batch(model, seed=0, pad_id=0):
    rng = np.random.default_rng(seed)
    shape = (3, 17)
    mask = (np.arange(17) < np.array([[17], [9], [12]])).astype(np.int64)
    # The padding id occurs only in padding, because RoBERTa does not count it in positions.
    is_low = pad_id < model["vocab_size"] // 2
    ids = rng.integers(*((pad_id + 1, model["vocab_size"]) if is_low else (0, pad_id)), shape)
    return {
        "input_ids": np.where(mask, ids, pad_id),
        "token_type_ids": rng.integers(0, max(1, model["type_vocab_size"]), shape),
        "attention_mask": mask,
        # A target has other lengths than its source.
        "decoder_input_ids": np.where(mask[::-1], ids[::-1], pad_id),
        "decoder_attention_mask": mask[::-1],
    }


@pytest.fixture
def cache_items(monkeypatch):
    """Lets transformers 5.24.0 run a pre-norm FlauBERT, which indexes a cache without items."""
    cache = transformers.cache_utils.EncoderDecoderCache
    if not hasattr(cache, "__getitem__"):
        monkeypatch.setattr(cache, "__getitem__", lambda self, i: self, raising=False)


def needs_class(name):
    if not hasattr(transformers, name):
        pytest.skip(f"this version of transformers has no {name}")


def their_outputs(model, batch):
    # DistilBERT has no token types. FlauBERT takes them for tokens, whose embeddings it adds. Only
    # BART has a target.
    names = batch.keys() & inspect.signature(model.forward).parameters.keys()
    names -= {"token_type_ids"} if model.config.model_type == "flaubert" else set()
    with torch.no_grad():
        return model.eval()(**{n: torch.tensor(np.ascontiguousarray(batch[n])) for n in names})


def load_whole(class_name, path):
    """Loads a directory and checks that no key is missing, unexpected or of another shape."""
    model, report = getattr(transformers, class_name).from_pretrained(
        path, output_loading_info=True
    )
    assert not any(report.values()), report
    assert json.loads((path / "config.json").read_text())["architectures"] == [class_name]
    return model


def assert_same_logits(theirs, pretrained, weights):
    """Compares the logits of every term at every real token."""
    pad_id = theirs.config.pad_token_id
    config, batch = pretrained.model_config, random_batch(pretrained.model, pad_id=pad_id)
    params = {"params": unflatten(weights, config)}
    output, real = their_outputs(theirs, batch), batch["attention_mask"].astype(bool)
    terms = make_terms(pretrained.terms)
    positions = np.tile(np.arange(17), (3, 1))
    ours = PreTrainingModel(config, terms).apply(
        params,
        batch
        | dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), positions)
        | {"masked_lm_weights": np.zeros((3, 17), np.float32)},
        deterministic=True,
    )
    if "denoising" in ours:
        ours["lm"], real = ours["denoising"], batch["decoder_attention_mask"].astype(bool)
    if "lm" in ours:  # Its logits are computed in slices.
        ours["lm"] = vocabulary_logits(*ours["lm"])
    if "rtd" in ours:
        logits_BxL = ours["rtd"][0]
        np.testing.assert_allclose(logits_BxL[real], output.logits.numpy()[real], atol=1e-4)
        return
    tokens = ours["mlm" if "mlm" in ours else "lm"][..., : config.vocab_size]
    of_pairs = ours.keys() & PAIR_LOGITS.keys()
    logits = output.prediction_logits if of_pairs else output.logits
    np.testing.assert_allclose(tokens[real], logits.numpy()[real], atol=1e-4)
    for name in of_pairs:
        np.testing.assert_allclose(ours[name], output[PAIR_LOGITS[name]].numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("class_name", "options"),
    [
        ("BertForPreTraining", {"hidden_act": "gelu"}),
        ("BertForPreTraining", {"hidden_act": "gelu_new"}),
        ("BertForPreTraining", {"hidden_act": "relu"}),
        ("BertForMaskedLM", {"terms": ("masked_lm",)}),
        ("BertLMHeadModel", {"terms": ("next_token",), "causal": True}),
        ("RobertaForMaskedLM", {"family": "roberta"}),
        ("XLMRobertaForMaskedLM", {"family": "xlm_roberta"}),
        ("CamembertForMaskedLM", {"family": "camembert"}),
        ("DistilBertForMaskedLM", {"family": "distilbert"}),
        ("ElectraForPreTraining", {"family": "electra"}),
        ("ElectraForMaskedLM", {"family": "electra", "terms": ("masked_lm",)}),
        ("AlbertForPreTraining", {"family": "albert"}),
        ("AlbertForMaskedLM", {"family": "albert", "terms": ("masked_lm",)}),
        ("ModernBertForMaskedLM", {"family": "modernbert"}),
        ("ModernBertForMaskedLM", {"family": "modernbert", **GLOBAL}),
        ("FlaubertWithLMHeadModel", {"family": "flaubert"}),
        ("FlaubertWithLMHeadModel", {"family": "flaubert", "norm": "pre", "hidden_act": "relu"}),
        ("BartForConditionalGeneration", {"family": "bart"}),
        ("NomicBertForMaskedLM", {"family": "nomic_bert"}),
        ("GteForMaskedLM", {"family": "gte"}),
        ("GteForMaskedLM", {"family": "gte", "type_vocab_size": 0, "rope_scale": 1.0}),
        ("JinaEmbeddingsV3ForMaskedLM", {"family": "jina_v3"}),
        ("EuroBertForMaskedLM", {"family": "eurobert"}),
        ("EuroBertForMaskedLM", {"family": "eurobert", "num_key_value_heads": 0}),
        ("EsmForMaskedLM", {"family": "esm"}),
        ("EsmcForMaskedLM", {"family": "esmc"}),
        ("EsmForMaskedLM", {"family": "esm", "token_dropout": 0.0, "mask_token_id": -1}),
    ],
)
def test_transformers_loads_our_directory_completely(tmp_path, class_name, options, cache_items):
    needs_class(class_name)
    pretrained = make_pretrained(**options)
    if pretrained.model["norm"] in ("pre", "all_pre_and_final"):
        # Without LayerNorm on the sums of the blocks, these would be several hundred.
        pretrained.weights = {name: x / 4 for name, x in pretrained.weights.items()}
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    theirs = load_whole(class_name, tmp_path / "hf")
    # In version 5, only configs of classes that can be decoders have this key.
    assert getattr(theirs.config, "is_decoder", False) == options.get("causal", False)
    assert_same_logits(theirs, pretrained, weights)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_keys_that_a_config_lacks_have_the_defaults_of_transformers(name):
    family = load_family(name)
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if family.model_types[0] not in mapping:
        pytest.skip(f"this version of transformers has no {family.model_types[0]}")
    rotary = {"vocab_size": 33, "mask_token_id": 32, "position_embedding_type": "rotary"}
    config = mapping[family.model_types[0]](**rotary if name == "esm" else {}).to_dict()
    read = lambda config: read_family_keys(current_keys(config, family, "-"), family, "-")  # noqa: E731
    whole = read(config)
    found = 0
    for key in config:
        part = {other: value for other, value in config.items() if other != key}
        try:
            model = read(part)
        except (UserError, KeyError):  # A size without which nothing is read.
            continue
        assert model == whole, key
        found += 1
    assert found > 5


def randomized(model, deviation=1.0):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=deviation)
    return model


@pytest.mark.parametrize(
    ("config_class", "class_name", "values"),
    [
        ("BertConfig", "BertForPreTraining", {}),
        ("BertConfig", "BertLMHeadModel", {"is_decoder": True}),
        ("RobertaConfig", "RobertaForMaskedLM", {"type_vocab_size": 1}),
        ("XLMRobertaConfig", "XLMRobertaForMaskedLM", {"type_vocab_size": 1}),
        ("CamembertConfig", "CamembertForMaskedLM", {"type_vocab_size": 1}),
        (
            "DistilBertConfig",
            "DistilBertForMaskedLM",
            {"hidden_dim": 20, "qa_dropout": 0.0, "seq_classif_dropout": 0.0},
        ),
        ("AlbertConfig", "AlbertForPreTraining", {"embedding_size": 7, "num_hidden_groups": 2}),
        ("ElectraConfig", "ElectraForPreTraining", {"embedding_size": 10}),
        ("ElectraConfig", "ElectraForMaskedLM", {"embedding_size": 10}),
        ("FlaubertConfig", "FlaubertWithLMHeadModel", FLAUBERT),
        ("ModernBertConfig", "ModernBertForMaskedLM", MODERNBERT),
        ("BartConfig", "BartForConditionalGeneration", BART),
    ],
)
def test_bert_jax_loads_directories_of_transformers(tmp_path, config_class, class_name, values):
    sizes = {"max_position_embeddings": 40} if values in (BART, FLAUBERT) else SIZES
    config = getattr(transformers, config_class)(**{"vocab_size": 28} | sizes | values)
    model = randomized(getattr(transformers, class_name)(config), 0.5)
    for safe in (True, False):
        model.save_pretrained(tmp_path / str(safe), safe_serialization=safe)
        pretrained = formats.read(tmp_path / str(safe))
        assert pretrained.warnings == []
        assert_same_logits(model, pretrained, pretrained.weights)


def round_trip(model, tokenizer, directory):
    """Converts a model of transformers and back, and compares the config and the ids of texts.

    Returns:
      The tensors before and after, and the tokenizer afterwards.
    """
    theirs, ours, again = (str(directory / name) for name in ("theirs", "ours", "again"))
    model.save_pretrained(theirs)
    tokenizer.save_pretrained(theirs)
    assert convert.convert(theirs, ours, "bert_jax") == []
    assert convert.convert(ours, again, "huggingface") == []
    load_whole(type(model).__name__, directory / "again")
    configs = [transformers.AutoConfig.from_pretrained(path).to_dict() for path in (theirs, again)]
    assert configs[0] == configs[1] | {"_name_or_path": theirs}
    loaded = transformers.AutoTokenizer.from_pretrained(again)
    assert loaded(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    before, after = (load_file(f"{path}/model.safetensors") for path in (theirs, again))
    return before, after, loaded


@pytest.mark.parametrize(
    ("family", "tokenizer_class", "folder"),
    [
        ("Roberta", "RobertaTokenizerFast", "roberta"),
        ("Roberta", "PhobertTokenizer", "phobert"),
        ("XLMRoberta", "XLMRobertaTokenizer", "xlm_roberta"),
        ("Camembert", "CamembertTokenizer", "xlm_roberta"),
    ],
)
def test_roberta_of_transformers_round_trip(tmp_path, family, tokenizer_class, folder):
    """Compares all weights but the two unused positions, the config and the tokenizer."""
    zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(tmp_path)
    tokenizer = getattr(transformers, tokenizer_class).from_pretrained(tmp_path / folder)
    config = getattr(transformers, f"{family}Config")(
        **SIZES | {"max_position_embeddings": 42},
        vocab_size=len(tokenizer),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = getattr(transformers, f"{family}ForMaskedLM")(config)
    torch.nn.init.zeros_(randomized(model).roberta.embeddings.token_type_embeddings.weight)
    before, after, _ = round_trip(model, tokenizer, tmp_path)
    before["roberta.embeddings.position_embeddings.weight"][:2] = 0
    assert same_weights(before, after)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_flaubert_of_transformers_round_trip(tmp_path, pre_norm):
    """Compares all weights, the config and the tokenizer."""
    pytest.importorskip("sacremoses")
    zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(tmp_path)
    tokenizer = transformers.FlaubertTokenizer.from_pretrained(
        tmp_path / "flaubert", do_lowercase=pre_norm
    )
    config = transformers.FlaubertConfig(
        vocab_size=len(tokenizer),
        emb_dim=12,
        n_layers=2,
        n_heads=2,
        max_position_embeddings=40,
        pre_norm=pre_norm,
        gelu_activation=pre_norm,
        eos_token_id=1,
    )
    model = randomized(transformers.FlaubertWithLMHeadModel(config))
    before, after, loaded = round_trip(model, tokenizer, tmp_path)
    assert same_weights(before, after)
    assert type(loaded) is type(tokenizer)
    assert "token_type_ids" not in loaded(TEXTS)


@pytest.mark.parametrize("values", [{}, {"global_attn_every_n_layers": 1}])
def test_modernbert_of_transformers_round_trip(tmp_path, values):
    """Compares all weights and the config, in the spellings of both versions."""
    config = transformers.ModernBertConfig(
        **SIZES | {"num_hidden_layers": 7},
        vocab_size=28,
        global_rope_theta=70.0,
        local_rope_theta=30.0,
        local_attention=6,
        classifier_pooling="mean",
        **{f"{name}_token_id": i for i, name in enumerate(("pad", "cls", "bos", "sep", "eos"))},
        **values,
    )
    model = randomized(transformers.ModernBertForMaskedLM(config))
    theirs, again = str(tmp_path / "theirs"), str(tmp_path / "again")
    model.save_pretrained(theirs)
    ours = formats.read(tmp_path / "theirs")
    # Without padding's id, transformers would take its own, 50,283.
    ours.tokenizer = make_tokenizer("modernbert")
    keys = dict(ours.model)
    assert ours.warnings == []
    formats.write(ours, tmp_path / "again", "huggingface")
    load_whole("ModernBertForMaskedLM", tmp_path / "again")
    before, after = (load_file(f"{path}/model.safetensors") for path in (theirs, again))
    assert same_weights(before, after)
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    every = values.get("global_attn_every_n_layers", 3)
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(7)]
    assert written["global_attn_every_n_layers"] == every and written["layer_types"] == kinds
    assert written["global_rope_theta"] == 70
    assert written["rope_parameters"]["full_attention"]["rope_theta"] == 70
    # Version 4 ignores the spelling of version 5, and the other way round.
    for spelling in (("layer_types", "rope_parameters"), _OLD):
        rest = {key: value for key, value in written.items() if key not in spelling}
        (tmp_path / "again" / "config.json").write_text(json.dumps(rest))
        assert formats.read(tmp_path / "again").model == keys


EURO_IDS = {"bos": 23, "eos": 24, "pad": 24, "mask": 25}
EURO = {"vocab_size": 27, **{f"{name}_token_id": i for name, i in EURO_IDS.items()}}
ROPE = {"rope_type": "default", "rope_theta": 30.0}


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize(
    ("prefix", "values"),
    [
        ("NomicBert", {"rope_parameters": ROPE}),
        ("Gte", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 2.5}}),
        ("JinaEmbeddingsV3", {"rope_parameters": ROPE}),
        ("Esmc", {"rope_parameters": ROPE}),
        ("EuroBert", {"rope_parameters": ROPE, "num_key_value_heads": 1, **EURO}),
    ],
)
def test_families_of_transformers_5_round_trip(tmp_path, prefix, values, is_native):
    """Compares all weights and the config, for the names on disk and those in memory."""
    needs_class(f"{prefix}ForMaskedLM")
    config = getattr(transformers, f"{prefix}Config")(**{"vocab_size": 28} | SIZES | values)
    model = randomized(getattr(transformers, f"{prefix}ForMaskedLM")(config), 0.25)
    model.save_pretrained(tmp_path / "disk")
    model.save_pretrained(tmp_path / "read", save_original_format=not is_native)
    ours = formats.read(tmp_path / "read")
    assert ours.warnings == []
    assert_same_logits(model, ours, ours.weights)
    # Without them, transformers would take its own ids of special tokens.
    ours.tokenizer = make_tokenizer("eurobert") if prefix == "EuroBert" else None
    formats.write(ours, tmp_path / "again", "huggingface")
    load_whole(f"{prefix}ForMaskedLM", tmp_path / "again")
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("disk", "again"))
    assert same_weights(before, after)
    configs = [
        transformers.AutoConfig.from_pretrained(tmp_path / path).to_dict()
        for path in ("disk", "again")
    ]
    assert configs[0] == configs[1] | {"_name_or_path": str(tmp_path / "disk")}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_esm_of_transformers(tmp_path, dtype):
    """The frequencies of the released models are rounded, and transformers reads them.

    Version 5 writes LayerNorm.gamma and one tensor for the angles of all layers.
    """
    config = transformers.EsmConfig(
        **SIZES | {"hidden_size": 48},
        vocab_size=33,
        mask_token_id=32,
        pad_token_id=1,
        position_embedding_type="rotary",
        token_dropout=True,
        emb_layer_norm_before=False,
        layer_norm_eps=1e-5,
    )
    model = randomized(transformers.EsmForMaskedLM(config), 0.25)
    for module in model.modules():
        if isinstance(getattr(module, "inv_freq", None), torch.Tensor):
            module.inv_freq.copy_(module.inv_freq.to(getattr(torch, dtype)))
    model.save_pretrained(tmp_path / "theirs")
    ours = formats.read(tmp_path / "theirs")
    keys, weights = dict(ours.model), copies(ours.weights)
    (warning,) = ours.warnings
    assert "contact_head.regression.weight are not used and are left out" in warning
    assert (keys["token_dropout"], keys["rope_dtype"]) == (0.12, dtype)
    assert_same_logits(model, ours, weights)
    ours.tokenizer = ProteinTokenizer(ESM_TOKENS, special_tokens=CONVENTIONS["esm"])
    formats.write(ours, tmp_path / "again", "huggingface")
    theirs = load_whole("EsmForMaskedLM", tmp_path / "again")
    assert_same_logits(theirs, ours, weights)
    again = formats.read(tmp_path / "again")
    assert again.model == keys and same_weights(again.weights, weights) and again.warnings == []
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in ("MKTAYIAKQR", "MKJJA", "M K <mask> A", "acXBUZO.-"):
        expected = again.tokenizer.join(again.tokenizer.encode_masked(text)).input_ids_L.tolist()
        assert tokenizer(text)["input_ids"] == expected, text
    before, after = (
        transformers.AutoConfig.from_pretrained(tmp_path / path).to_dict()
        for path in ("theirs", "again")
    )
    # Version 4 has no key for the base of its positions.
    assert before == {k: after[k] for k in before} | {"_name_or_path": str(tmp_path / "theirs")}


def test_the_tokenizer_of_an_esmc(tmp_path):
    """Version 5 saves it as a tokenizer.json without rules that split a text."""
    needs_class("EsmcForMaskedLM")
    pretrained = make_pretrained(family="esmc", vocab_size=33)
    tokens = ["|" if token == "<null_1>" else token for token in ESM_TOKENS]
    pretrained.tokenizer = ProteinTokenizer(tokens, special_tokens=CONVENTIONS["esm"])
    formats.write(pretrained, tmp_path / "ours", "huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(theirs).__name__ == "EsmcTokenizer"
    theirs.save_pretrained(tmp_path / "ours")
    (tmp_path / "ours" / "bert_jax_tokenizer.json").unlink()
    again = formats.read(tmp_path / "ours").tokenizer
    assert again.tokens == tokens
    for text in ("MKTAYIAKQR", "M|K<mask>A", "JXBUZO.-"):
        expected = again.join(again.encode_masked(text)).input_ids_L.tolist()
        assert theirs(text)["input_ids"] == expected, text


_OLD = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
PREFIXES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "albert": "Albert"}
TASK_CLASSES = [
    *((*head, family, prefix, {}) for head in HEADS for family, prefix in PREFIXES.items()),
    ("token_classification", LABELS, "bert", "Bert", {"causal": True}),
    (*HEADS[0], "xlm_roberta", "XLMRoberta", {}),
    (*HEADS[0], "camembert", "Camembert", {}),
    *((*head, "flaubert", "Flaubert", {}) for head in HEADS[:4]),
    *((*head, "modernbert", "ModernBert", {}) for head in HEADS),
    (*HEADS[0], "modernbert", "ModernBert", {"classifier_pooling": "mean"}),
    *((*HEADS[i], "nomic_bert", "NomicBert", {}) for i in (0, 2)),
    *((*HEADS[i], "gte", "Gte", {}) for i in (0, 2)),
    *((*HEADS[i], "jina_v3", "JinaEmbeddingsV3", {}) for i in (0, 2, 3)),
    *((*HEADS[i], "eurobert", "EuroBert", {}) for i in (0, 1, 2)),
    *((*HEADS[i], "esm", "Esm", {}) for i in (0, 2)),
    *((*HEADS[i], "esmc", "Esmc", {}) for i in (0, 2)),
    *((*HEADS[0], "eurobert", "EuroBert", {"classifier_pooling": p}) for p in ("cls", "mean")),
]


@pytest.mark.parametrize(("head", "labels", "family", "prefix", "changes"), TASK_CLASSES)
def test_fine_tuned_models_have_the_same_logits_and_labels(
    tmp_path, head, labels, family, prefix, changes
):
    needs_class(f"{prefix}Model")
    pretrained = make_finetuned(head, labels, family=family)
    pretrained.model |= changes
    weights = copies(pretrained.weights)
    formats.write(pretrained, tmp_path / "hf", "huggingface")
    # FlaubertForQuestionAnswering has another head.
    simple = "Simple" if (family, head) == ("flaubert", "question_answering") else ""
    theirs = load_whole(f"{prefix}For{head.title().replace('_', '')}{simple}", tmp_path / "hf")
    if labels:
        assert theirs.config.id2label == dict(enumerate(labels))
        assert theirs.config.label2id == {name: i for i, name in enumerate(labels)}
    elif head == "sequence_classification":
        assert theirs.config.problem_type == "regression" and theirs.config.num_labels == 1
    batch = random_batch(pretrained.model, pad_id=theirs.config.pad_token_id)
    if head == "multiple_choice":
        batch = {name: np.stack([x, x[::-1]], axis=1) for name, x in batch.items()}
    output, config = their_outputs(theirs, batch), pretrained.model_config
    ours = (
        load_head(head)
        .make_model(config, len(labels))
        .apply({"params": unflatten(weights, config)}, batch, deterministic=True)
    )
    per_token = head in ("token_classification", "question_answering")
    real = batch["attention_mask"].astype(bool) if per_token else ...
    for name, logits in ours.items():
        np.testing.assert_allclose(logits[real], output[name].numpy()[real], atol=1e-4)
    theirs.save_pretrained(tmp_path / "saved")
    again = formats.read(tmp_path / "saved")
    assert (again.head, again.labels) == (head, labels) and same_weights(again.weights, weights)
