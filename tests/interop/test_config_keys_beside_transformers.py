"""Each key of a family's config class in `transformers`, varied: the same outputs, or refused."""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.base.errors import UserError
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.families import FAMILIES, load_family
from bert_jax.interop.model_keys import TRAINING_ONLY
from bert_jax.interop.weights import unflatten
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.outside

LENGTH = 17
NAMES = [name for name in FAMILIES if name not in ("spanbert", "herbert")]
SIZES = {
    "vocab_size": 44,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
# The keys that have other names or other values in a family.
BASES = {
    "albert": {"embedding_size": 24},
    "electra": {"embedding_size": 24},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "bart": {
        "d_model": 32,
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    },
    "flaubert": {"emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "modernbert": {"local_attention": 6, "num_hidden_layers": 4},
    "eurobert": {"num_key_value_heads": 2},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 9, "pad_token_id": 1},
}
# Ids of special tokens, which must be below the size of the vocabulary.
IDS = dict(pad=1, bos=0, cls=0, eos=2, sep=2, mask=9)
# Values of keys, where their type alone does not tell one.
ACTIVATIONS = ["relu", "swish", "tanh"]
ROPE = {"rope_type": "default", "rope_theta": 300.0}
ROPES = [
    ROPE,
    {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.5},
    {"rope_type": "dynamic", "rope_theta": 300.0, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 300.0, "factor": 2.0},
    {**ROPE, "partial_rotary_factor": 0.5},
]
VALUES = {
    **dict.fromkeys(
        ("hidden_act", "activation", "activation_function", "hidden_activation"), ACTIVATIONS
    ),
    "classifier_activation": ["relu"],
    "summary_activation": ["tanh"],
    "summary_type": ["last", "mean"],
    "position_embedding_type": ["absolute", "rotary"],
    "layer_types": [
        ["full_attention"] * 4,
        ["full_attention", "sliding_attention"] * 2,
        ["sliding_attention", "full_attention"] * 2,
    ],
    "rope_parameters": ROPES,
    "hidden_size": [48],
    **dict.fromkeys(("dim", "d_model", "emb_dim"), [48]),
    **dict.fromkeys(("num_attention_heads", "n_heads", "encoder_attention_heads"), [2]),
    "decoder_attention_heads": [2],
    "num_key_value_heads": [1, 4],
    "num_hidden_groups": [2],
    "head_dim": [8, 12],
    "local_attention": [10],
    "esmfold_config": [None],
}
OF_FAMILY = {
    ("bert", "hidden_act"): [
        *ACTIVATIONS,
        *("silu", "gelu_new", "gelu_fast", "gelu_python", "gelu_accurate", "gelu_pytorch_tanh"),
    ],
    ("modernbert", "classifier_pooling"): ["mean"],
    ("eurobert", "classifier_pooling"): ["mean", "bos"],
    ("modernbert", "rope_parameters"): [
        {"full_attention": ROPE, "sliding_attention": ROPE},
        {"full_attention": ROPES[1], "sliding_attention": ROPE},
        {"full_attention": ROPE, "sliding_attention": {"rope_type": "default"}},
    ],
}
# What a file says of its own making, the names of labels, the loss, and what a call returns.
BOOKKEEPING = {
    "transformers_version",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "problem_type",
    "return_dict",
    "output_hidden_states",
    "is_encoder_decoder",
    "vocab_list",
}


# Keys of models that transformers itself does not run, with any other value.
FAILING = {
    **dict.fromkeys(
        ("bert", "electra", "roberta", "xlm_roberta", "camembert", "esm"), ["add_cross_attention"]
    ),
    "esmc": ["head_dim", "num_key_value_heads"],
    "flaubert": ["is_encoder"],
}


def config_class(name):
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    return mapping[load_family(name).model_types[0]]


def base_of(name):
    known = {field.name for field in dataclasses.fields(config_class(name))}
    ids = {f"{key}_token_id": i for key, i in IDS.items()}
    return {key: v for key, v in {**SIZES, **ids}.items() if key in known} | BASES.get(name, {})


def values_of(name, key, value):
    """Returns other values of a key, by its name or else by its type."""
    if (name, key) in OF_FAMILY:
        return OF_FAMILY[name, key]
    if key in VALUES:
        return [other for other in VALUES[key] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [2 * value + 0.1]
    if value is None and key.endswith(("_token_id", "_index")):
        return [3]
    if value is None and "dropout" in key:
        return [0.3]
    if value is None:
        return [True]
    raise AssertionError(f"nobody decided how to vary {key} of {name}, which is {value!r}")


def cases(name):
    config = config_class(name)(**base_of(name))
    for field in dataclasses.fields(config):
        if field.name not in BOOKKEEPING:
            for value in values_of(name, field.name, getattr(config, field.name)):
                yield field.name, value


def class_names(family):
    classes = family.task_classes
    return [family.pretraining_classes[0].name, classes["SequenceClassification"].name]


def make_model(class_name, config):
    """Makes a model whose weights depend on their names and shapes only."""
    model = getattr(transformers, class_name)(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.25, generator=generator)
    return model


def make_batch(vocab_size, types):
    rng = np.random.default_rng(0)
    shape = (3, LENGTH)
    mask = (np.arange(LENGTH) < np.array([[LENGTH], [9], [12]])).astype(np.int64)
    ids = np.where(mask, rng.integers(4, vocab_size, shape), IDS["pad"])
    # A BART for classification pools the last </s>.
    ids[range(3), mask.sum(axis=1) - 1] = IDS["eos"]
    return {
        "input_ids": ids,
        "token_type_ids": rng.integers(0, max(1, types), shape),
        "attention_mask": mask,
        "decoder_input_ids": ids[::-1],
        "decoder_attention_mask": mask[::-1],
    }


def their_logits(model, batch):
    names = {"input_ids", "attention_mask"}
    if getattr(model.config, "type_vocab_size", 0):
        names.add("token_type_ids")
    if model.config.model_type == "bart" and "Classification" not in type(model).__name__:
        names |= {"decoder_input_ids", "decoder_attention_mask"}
    with torch.no_grad():
        output = model(**{n: torch.tensor(np.ascontiguousarray(batch[n])) for n in names})
    return (output.prediction_logits if "prediction_logits" in output else output.logits).numpy()


def our_logits(pretrained, batch):
    config = pretrained.model_config
    params = {"params": unflatten(pretrained.weights, config)}
    if pretrained.head:
        model = load_head(pretrained.head).make_model(config, len(pretrained.labels))
        (logits,) = model.apply(params, batch, deterministic=True).values()
        return np.asarray(logits)
    positions = np.tile(np.arange(LENGTH), (3, 1))
    batch = batch | dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), positions)
    batch["masked_lm_weights"] = np.zeros((3, LENGTH), np.float32)
    ours = PreTrainingModel(config, make_terms(pretrained.terms)).apply(
        params, batch, deterministic=True
    )
    if "rtd" in ours:
        return np.asarray(ours["rtd"][0])
    names = [name for name in ("denoising", "lm") if name in ours]
    logits = vocabulary_logits(*ours[names[0]]) if names else ours["mlm"]
    return np.asarray(logits)[..., : config.vocab_size]


def assert_same(theirs, ours, batch, what):
    if theirs.ndim > 1 and theirs.shape[:2] == batch["attention_mask"].shape:
        is_target = "denoising" in what
        real = batch["decoder_attention_mask" if is_target else "attention_mask"].astype(bool)
        theirs, ours = theirs[real], ours[real]
    error = np.abs(theirs - ours).max() / np.abs(theirs).max()
    assert error < 2e-5, (what, error)


def their_case(name, class_name, values):
    """Returns a model of transformers, its batch and its logits; None if there is no such model."""
    try:
        config = config_class(name)(**base_of(name) | values)
        model = make_model(class_name, config)
        batch = make_batch(config.vocab_size, getattr(config, "type_vocab_size", 0))
        return model, batch, their_logits(model, batch)
    except Exception:
        return None


def compared(path, theirs, batch):
    """Returns whether bert_jax has the logits of a directory; False if it refuses a model or head.

    Raises AssertionError for other logits.
    """
    try:
        pretrained = formats.read(path)
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return False
    is_task = "Classification" in json.loads((path / "config.json").read_text())["architectures"][0]
    if is_task and not pretrained.head:
        assert any("read without its head" in warning for warning in pretrained.warnings)
        return False
    assert_same(theirs, our_logits(pretrained, batch), batch, pretrained.terms)
    return True


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """Lets transformers 5.24.0 run a pre-norm FlauBERT, which indexes a cache without items."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # Threads cost more than they bring in models this small.
    cache = transformers.cache_utils.EncoderDecoderCache
    if not hasattr(cache, "__getitem__"):
        monkeypatch.setattr(cache, "__getitem__", lambda self, i: self, raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_each_key_of_a_config_class(name, tmp_path):
    wrong, num_same, varied = [], 0, set()
    for class_name in class_names(load_family(name)):
        model, batch, base = their_case(name, class_name, {})
        model.save_pretrained(tmp_path / "base")
        assert compared(tmp_path / "base", base, batch)
        keys = function_keys(tmp_path / "base")
        for key, value in cases(name):
            case = their_case(name, class_name, {key: value})
            if not case:
                continue
            model, batch, theirs = case
            varied.add(key)
            path = tmp_path / "varied"
            model.save_pretrained(path)
            try:
                # Equal keys, weights and logits need no second computation.
                same = theirs.shape == base.shape and np.array_equal(theirs, base)
                num_same += same and function_keys(path) == keys or compared(path, theirs, batch)
            except Exception as error:
                wrong.append(f"{class_name} {key}={value}: {type(error).__name__} {error}")
    assert not wrong
    assert num_same > 20
    assert {key for key, _ in cases(name)} - varied == set(FAILING.get(name, ()))


def test_an_albert_that_projects_embeddings_of_its_own_width_is_refused(tmp_path):
    model, _, _ = their_case("albert", "AlbertForPreTraining", {"embedding_size": 32})
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="embedding_size is 32; it must differ from hidden_size"):
        formats.read(tmp_path)


def function_keys(path):
    """Returns the keys of a model in a directory that are part of its function."""
    try:
        model = formats.describe(path).model
    except UserError:
        return None
    return {key: value for key, value in model.items() if key not in TRAINING_ONLY}


LINEAR = {"type": "linear", "factor": 2.0}
# Changes of a config.json with the spellings of rotary positions; None drops a key.
ROPE_CHANGES = [
    {"rope_scaling": LINEAR, "rope_parameters": ROPE},
    {"rope_scaling": LINEAR, "rope_parameters": None, "rope_theta": 300.0},
    {"rope_scaling": {**LINEAR, "rope_theta": 300.0}, "rope_theta": 70.0},
    {"rope_scaling": {"type": "default"}, "rope_theta": 70.0},
    {"rope_scaling": {}, "rope_parameters": ROPE, "rope_theta": 70.0},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": 70.0},
    {"rope_parameters": None, "rope_theta": 300.0},
    {"rope_parameters": None, "rope_theta": 300.0, "partial_rotary_factor": 0.5},
    {"rope_parameters": {**ROPES[1], "attention_factor": 2.0}},
    {"rope_parameters": {**ROPES[1], "partial_rotary_factor": 1.0}},
    {"rope_parameters": {"full_attention": ROPE}},
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0}},
]
MODERNBERT_CHANGES = [
    {"rope_scaling": {"rope_type": "default", "rope_theta": 300.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": LINEAR},
    {"rope_parameters": None, "global_rope_theta": 300.0, "local_rope_theta": 70.0},
    {"rope_parameters": None, "rope_theta": 300.0},
    {"rope_parameters": {"full_attention": {**ROPE, "mscale": 2.0}}},
    {"layer_types": None, "global_attn_every_n_layers": 2},
    {"layer_types": None},
    {"sliding_window": 2},
]
ANY_CHANGES = [
    {"per_layer_config": {"0": {"intermediate_size": 40}}},
    {"torch_dtype": "float32", "gradient_checkpointing": True},
]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, change) for name in ("nomic_bert", "gte") for change in ROPE_CHANGES),
        *((name, ROPE_CHANGES[0]) for name in ("jina_v3", "eurobert", "esmc")),
        *(("modernbert", change) for change in MODERNBERT_CHANGES),
        *((name, change) for name in ("bert", "gte") for change in ANY_CHANGES),
    ],
)
def test_other_spellings_in_a_config_json(name, changes, tmp_path):
    class_name = class_names(load_family(name))[0]
    model, batch, _ = their_case(name, class_name, {})
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        theirs = their_logits(
            getattr(transformers, class_name).from_pretrained(tmp_path).eval(), batch
        )
    except Exception:
        with pytest.raises(UserError, match=r"config\.json: "):
            formats.read(tmp_path)
    else:
        compared(tmp_path, theirs, batch)
