"""Files as the authors of released models publish them: the outputs of `transformers`.

The keys of each config.json and the names of its tensors are those of the Hugging Face Hub; the
sizes are small and the weights random.
"""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.base.errors import UserError
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.families import FAMILIES, load_family
from bert_jax.interop.weights import unflatten
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers.protein import ESM_TOKENS
from tests.interop.small_bert import edit_tensors, make_pretrained, same_weights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.outside

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
CODE = {"AutoConfig": "a/b--configuration.C", "AutoModel": "a/b--modeling.M"}
NOMIC = {
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "auto_map": CODE,
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 2,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 8,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "summary_activation": None,
    "summary_first_dropout": 0.0,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "torch_dtype": "float32",
    "transformers_version": "4.34.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 40,
}
# What was added to the published file for the class in transformers.
NOMIC_V15 = {
    **NOMIC,
    **SIZES,
    "architectures": ["NomicBertModel"],
    "max_position_embeddings": 2048,
    "max_trained_positions": 2048,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}
GTE = {
    **SIZES,
    "attention_probs_dropout_prob": 0.0,
    "auto_map": CODE,
    "classifier_dropout": 0.0,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 8192,
    "model_type": "new",
    "pack_qkv": True,
    "pad_token_id": 1,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "torch_dtype": "float16",
    "type_vocab_size": 1,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}
MODERNBERT = {
    **SIZES,
    "architectures": ["ModernBertModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 0,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 2,
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-05,
    "local_attention": 6,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "pad_token_id": 1,
    "position_embedding_type": "absolute",
    "repad_logits_with_grad": False,
    "sep_token_id": 2,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float16",
}
EUROBERT = {
    **SIZES,
    "architectures": ["EuroBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": CODE,
    "bos_token": "<|begin_of_text|>",
    "bos_token_id": 0,
    "clf_pooling": "late",
    "eos_token": "<|end_of_text|>",
    "eos_token_id": 1,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "mask_token": "<|mask|>",
    "mask_token_id": 2,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "eurobert",
    "num_key_value_heads": 2,
    "pad_token": "<|end_of_text|>",
    "pad_token_id": 1,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 250000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": False,
}
ESM = {
    **SIZES,
    "_name_or_path": "/tmp/facebook/esm2_t6_8M_UR50D",
    "architectures": ["EsmForMaskedLM"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "emb_layer_norm_before": False,
    "esmfold_config": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "is_folding_model": False,
    "layer_norm_eps": 1e-05,
    "mask_token_id": 32,
    "max_position_embeddings": 1026,
    "model_type": "esm",
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "torch_dtype": "float32",
    "transformers_version": "4.25.0.dev0",
    "use_cache": True,
    "vocab_list": None,
    "vocab_size": 33,
}
JINA = {
    **SIZES,
    "architectures": ["XLMRobertaModel"],
    "auto_map": CODE,
    "lora_adaptations": ["retrieval.query", "retrieval.passage"],
    "lora_rank": 4,
    "max_position_embeddings": 8194,
    "model_type": "xlm-roberta",
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "type_vocab_size": 1,
}


@pytest.fixture(autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()


def make_model(class_name, **values):
    config_class = getattr(transformers, re.sub("(Model|For.*)$", "Config", class_name))
    model = getattr(transformers, class_name)(config_class(**values)).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25, generator=generator)
    return model


def publish(model, directory, config, rename=lambda name: name, **more):
    """Writes a model with the authors' config.json and names of tensors."""
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    tensors = {rename(name): value for name, value in load_file(path).items()}
    save_file(tensors | more, path, {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))


def inputs(vocab_size, types):
    rng = np.random.default_rng(0)
    mask = (np.arange(17) < np.array([[17], [9], [12]])).astype(np.int64)
    return {
        "input_ids": np.where(mask, rng.integers(3, vocab_size, (3, 17)), 1),
        "token_type_ids": rng.integers(0, types, (3, 17)),
        "attention_mask": mask,
    }


def assert_same(model, pretrained):
    """Compares the states of an encoder, or the logits of a masked LM or a task head."""
    config = pretrained.model_config
    batch = inputs(config.vocab_size, max(1, config.type_vocab_size))
    names = [n for n in batch if n != "token_type_ids" or config.type_vocab_size]
    with torch.no_grad():
        theirs = model(**{n: torch.tensor(batch[n]) for n in names})[0].numpy()
    params = unflatten(pretrained.weights, config)
    if pretrained.head:
        ours = (
            load_head(pretrained.head)
            .make_model(config, len(pretrained.labels))
            .apply({"params": params}, batch, deterministic=True)
        )
        (ours,) = ours.values()
    elif "mlm" in params:
        positions = dict.fromkeys(
            ("masked_lm_positions", "masked_lm_ids"), np.tile(np.arange(17), (3, 1))
        )
        weights = {"masked_lm_weights": np.zeros((3, 17), np.float32)}
        ours = PreTrainingModel(config, make_terms(pretrained.terms)).apply(
            {"params": params}, batch | positions | weights, deterministic=True
        )["mlm"][..., : config.vocab_size]
    else:
        ours, _ = BertEncoder(config, has_pooler=False).apply(
            {"params": params["bert"]}, *batch.values(), deterministic=True
        )
    real = batch["attention_mask"].astype(bool) if theirs.ndim == 3 else ...
    theirs, ours = theirs[real], np.asarray(ours)[real].reshape(theirs[real].shape)
    assert np.abs(theirs - ours).max() < 2e-5 * np.abs(theirs).max()


def code_warning(path, title):
    return (
        f"{path / 'config.json'}: the code that its auto_map names is never run: the model is read "
        f"as a {title}"
    )


NOMIC_V1 = {"max_trained_positions": 2048, "rotary_scaling_factor": 2.0}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (NOMIC_V15, 8192),
        (NOMIC | {"architectures": ["NomicBertModel"]}, 8192),
        # Longer rows would have other angles.
        (NOMIC | NOMIC_V1 | {"architectures": ["NomicBertModel"]}, 2048),
    ],
)
def test_nomic_embed_text(tmp_path, config, positions):
    model = make_model("NomicBertModel", **SIZES)
    publish(model, tmp_path, config)
    ours = formats.read(tmp_path)
    assert ours.warnings == [code_warning(tmp_path, "NomicBERT")]
    assert ours.model["max_position_embeddings"] == positions
    assert_same(model, ours)


def test_nomic_bert_2048(tmp_path):
    """Its masked-LM head has no biases, and a dropout for training only differs from the other."""
    model = make_model("NomicBertForMaskedLM", **SIZES)
    for name, parameter in model.named_parameters():
        if name.startswith("cls.") and name.endswith("dense.bias") or name.endswith("ions.bias"):
            torch.nn.init.zeros_(parameter)
    config = NOMIC | {"architectures": ["NomicBertForPreTraining"], "embd_pdrop": 0.1}
    publish(model, tmp_path, config, lambda name: name.replace("nomic_bert.", "bert."))
    tensors = load_file(tmp_path / "model.safetensors")
    biases = {n for n in tensors if n.startswith("cls.") and n.endswith("bias")} - {
        "cls.predictions.transform.layer_norm.bias"
    }
    kept = {name: value for name, value in tensors.items() if name not in biases}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    ours = formats.read(tmp_path)
    ignored = f"{tmp_path / 'config.json'}: bert_jax ignores embd_pdrop=0.1, which only training "
    assert ours.warnings == [f"{ignored}uses", code_warning(tmp_path, "NomicBERT")]
    assert_same(model, ours)


def scale(model, factor):
    """Gives a GTE the angles of Alibaba's NTK scaling: a larger base, and all divided."""
    base = 20_000.0 * factor
    angles = 1 / base ** (torch.arange(0, 8, 2) / 8) / factor ** (2 / 8)
    model.get_submodule("gte" if hasattr(model, "gte") else "").rotary_emb.inv_freq.copy_(angles)


def new(name):
    return name.replace("gte.", "new.") if name.startswith("gte.") else name


def test_gte_multilingual_base(tmp_path):
    """Its file has a classifier of tokens for sparse vectors, which its first class lacks."""
    model = make_model("GteModel", **SIZES, type_vocab_size=1, pad_token_id=1)
    scale(model, 8.0)
    names = ["NewModel", "NewForTokenClassification"]
    head = {"classifier.weight": np.ones((1, 32), np.float32)}
    head["classifier.bias"] = np.ones(1, np.float32)
    publish(model, tmp_path, GTE | {"architectures": names}, lambda name: f"new.{name}", **head)
    ours = formats.read(tmp_path)
    left_out, code = ours.warnings
    assert "classifier.bias, classifier.weight are not used and are left out" in left_out
    assert code == code_warning(tmp_path, "GTE") and not ours.head
    assert_same(model, ours)


@pytest.mark.parametrize(
    ("kind", "num_labels"), [("SequenceClassification", 1), ("TokenClassification", 3)]
)
def test_gte_multilingual_reranker(tmp_path, kind, num_labels):
    """A head of Alibaba's classes is read, and kept by an export."""
    values = SIZES | {"type_vocab_size": 1, "pad_token_id": 1, "num_labels": num_labels}
    model = make_model(f"GteFor{kind}", **values)
    scale(model, 8.0)
    labels = {str(i): f"L{i}" for i in range(num_labels)}
    config = GTE | {"architectures": [f"NewFor{kind}"], "id2label": labels, "label2id": {}}
    publish(model, tmp_path / "new", config, new)
    ours = formats.read(tmp_path / "new")
    assert ours.warnings == [code_warning(tmp_path / "new", "GTE")] and ours.head
    assert_same(model, ours)
    formats.write(ours, tmp_path / "hf", "huggingface")
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["architectures"] == [f"GteFor{kind}"]
    paths = [tmp_path / folder / "model.safetensors" for folder in ("new", "hf")]
    assert np.array_equal(*(load_file(path)["classifier.weight"] for path in paths))


def test_missing_keys_of_alibaba_have_the_defaults_of_its_own_class(tmp_path):
    values = SIZES | {"type_vocab_size": 1, "pad_token_id": 1, "rope_theta": 10_000.0}
    model = make_model("GteForMaskedLM", **values)
    kept = ("model_type", "pad_token_id", *SIZES)
    config = {key: GTE[key] for key in kept} | {"architectures": ["NewForMaskedLM"]}
    publish(model, tmp_path, config, new)
    ours = formats.read(tmp_path)
    assert ours.warnings == [] and ours.terms == ("masked_lm",)
    assert ours.model["max_position_embeddings"] == 2048
    assert_same(model, ours)


def test_gte_modernbert_base(tmp_path):
    model = make_model("ModernBertModel", **MODERNBERT)
    publish(model, tmp_path, MODERNBERT)
    ours = formats.read(tmp_path)
    assert ours.warnings == []
    assert_same(model, ours)


def test_eurobert(tmp_path):
    rope = {"rope_type": "default", "rope_theta": 250_000.0}
    values = SIZES | {"num_key_value_heads": 2, "rope_parameters": rope, "pad_token_id": 1}
    model = make_model("EuroBertForMaskedLM", **values)
    publish(model, tmp_path, EUROBERT)
    ours = formats.read(tmp_path)
    assert ours.warnings == [code_warning(tmp_path, "EuroBERT")]
    assert_same(model, ours)


def test_esm2(tmp_path):
    """Its frequencies are those of float16, and its table of positions is unused."""
    model = make_model("EsmForMaskedLM", **ESM)
    angles = 1 / 10_000.0 ** (np.arange(0, 8, 2, dtype=np.float32) / 8)
    angles = angles.astype(np.float16).astype(np.float32)
    for module in model.modules():
        if isinstance(getattr(module, "inv_freq", None), torch.Tensor):
            module.inv_freq.copy_(torch.tensor(angles))
    layer = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
    more = {layer.format(i): angles.copy() for i in range(2)}
    more["esm.embeddings.position_embeddings.weight"] = np.ones((1026, 32), np.float32)
    more["esm.embeddings.position_ids"] = np.arange(1026)[None]
    rename = lambda name: name.replace(".gamma", ".weight").replace(".beta", ".bias")  # noqa: E731
    publish(model, tmp_path, ESM, rename, **more)
    ours = formats.read(tmp_path)
    (warning,) = ours.warnings
    assert "contact_head.regression.weight are not used and are left out" in warning
    assert_same(model, ours)


def test_esmc(tmp_path):
    """It has more rows than tokens, and its tokenizer_config.json another class name."""
    values = SIZES | {"vocab_size": 64, "pad_token_id": 1}
    model = make_model("EsmcForMaskedLM", **values)
    model.save_pretrained(tmp_path)
    tokens = ["|" if token == "<null_1>" else token for token in ESM_TOKENS]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ESMCTokenizer"}')
    ours = formats.read(tmp_path)
    assert ours.warnings == [] and ours.tokenizer.tokens == tokens
    assert_same(model, ours)
    ours.cut_padding()
    assert ours.model["vocab_size"] == 33


def test_jina_embeddings_v3(tmp_path):
    """Jina's own file is refused with the name of one that is read."""
    model = make_model("JinaEmbeddingsV3ForMaskedLM", **SIZES, type_vocab_size=1, pad_token_id=1)
    model.save_pretrained(tmp_path)
    ours = formats.read(tmp_path)
    assert ours.warnings == []
    assert_same(model, ours)
    (tmp_path / "config.json").write_text(json.dumps(JINA))
    with pytest.raises(UserError, match="lora_adaptations is of Jina .*jina-embeddings-v3-hf"):
        formats.read(tmp_path)


def ignored_tensors():
    """Returns the expressions of `transformers` for tensors that its classes ignore."""
    for name in FAMILIES:
        for kind in load_family(name).pretraining_classes:
            if found := getattr(transformers, kind.name, None):
                for pattern in found._keys_to_ignore_on_load_unexpected or ():
                    yield name, pattern
        yield name, "embeddings.position_ids"


@pytest.mark.parametrize(("name", "pattern"), sorted(set(ignored_tensors())))
def test_tensors_that_transformers_ignores(tmp_path, name, pattern):
    prefix = load_family(name).encoder_prefixes[0]
    tensor = {"position_embeddings.weight": "embeddings.position_embeddings.weight"}
    family = {"spanbert": "bert", "herbert": "bert"}.get(name, name)
    formats.write(make_pretrained(family=family), tmp_path, "huggingface")
    weights = formats.read(tmp_path).weights
    added = {prefix + tensor.get(pattern, pattern): np.ones(3, np.float32)}
    assert all(re.search(pattern, n) for n in added)
    edit_tensors(tmp_path, lambda tensors: tensors.update(added))
    again = formats.read(tmp_path)
    assert again.warnings == [] and same_weights(again.weights, weights)
