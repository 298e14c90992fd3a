"""Records states, logits, losses and gradients of transformers' PyTorch models.

    python -m benchmarks.golden.models [NAME ...]
    python -m benchmarks.golden.models new NAME '{"model_type": "bert", "vocab_size": 61, ...}'

The models of NEWER were recorded with transformers 5.24.0, the others with 4.57.6.

tests/models/test_parity.py compares bert_jax with them. `model_*.npz` are small models of odd
shapes with random parameters, and include their config.json and the weights; the second command
adds one without a decoder. As far as possible, no two sizes of a shape are equal. `real_*.npz` are
two trained models, whose weights stay in their packages. The losses are computed here, because
transformers averages over the masked tokens of a batch and BERT divides by sum(w) + 1e-5.
Everything is computed in float32, which is stored, and in float64: `float32_error/*` is the error
of the reference itself.
"""

import json
import sys
import zlib

import numpy as np
import torch
import transformers
from transformers import BertForPreTraining, BertModel, PreTrainedModel

from benchmarks.golden.recipe import save_arrays, under
from tests.golden.inputs import (
    ANTIBODIES,
    FOLDER,
    masked_one_by_one,
    package_folder,
    projections,
    random_batch,
    read_golden,
    section,
    signs,
)

# The class that a model is made of, unless the shape names one.
CLASSES = {
    "albert": "AlbertForPreTraining",
    "bart": "BartForConditionalGeneration",
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "electra": "ElectraForPreTraining",
    "modernbert": "ModernBertForMaskedLM",
    "flaubert": "FlaubertWithLMHeadModel",
    # Of transformers 5.
    "nomic_bert": "NomicBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "jina_embeddings_v3": "JinaEmbeddingsV3ForMaskedLM",
    "eurobert": "EuroBertForMaskedLM",
    "esm": "EsmForMaskedLM",
    "esmc": "EsmcForMaskedLM",
}
# Names of golden files for which transformers 4 has no class.
NEWER = ("nomic_bert", "gte", "jina_v3", "eurobert", "esm", "esmc")
# The number of entries that are stored of each large gradient.
LARGEST = 16


def main(*names: str) -> None:
    files = [f"model_{name}" for name in names] or [file.stem for file in FOLDER.glob("*.npz")]
    for file in files:
        name = file.removeprefix("model_")
        if file != name and name not in ("spanbert", "retromae", *([] if names else NEWER)):
            golden = read_golden(file)
            model = make_model(json.loads(str(golden["config"])))
            record(file, golden, model, run_of(model))
    if not names:
        record_minilm()
        record_antiberty()


def add(name: str, config: str) -> None:
    """Adds a model with random parameters and a random batch."""
    model, seed = make_model(json.loads(config)), zlib.crc32(name.encode())
    randomize(model, seed)
    pad_id = model.config.pad_token_id
    batch = random_batch(
        seed,
        batch_size=4,
        length=13,
        predictions=4,
        vocab_size=model.config.vocab_size - pad_id,
        type_vocab_size=getattr(model.config, "type_vocab_size", 1),
    )
    # In some families, the id of padding is not 0.
    for key in ("input_ids", "masked_lm_ids"):
        batch[key] += pad_id
    if getattr(model.config, "token_dropout", False):
        # No, few and many masks in a text; each changes all embeddings of the text.
        for row, number in enumerate((0, 1, 3, 5)):
            batch["input_ids"][row, 1 : 1 + number] = model.config.mask_token_id
    if model.config.model_type == "albert":
        batch["sentence_order_labels"] = batch.pop("next_sentence_labels")
    weights = {key: parameter.detach().numpy() for key, parameter in model.named_parameters()}
    golden = {"config": np.array(config), **under("weights", weights), **under("batch", batch)}
    record(f"model_{name}", golden, model, run_of(model))


def record(file: str, golden: dict[str, np.ndarray], model: PreTrainedModel, run) -> None:
    """Records what `run` returns for the weights and the batch of a file, in both precisions."""
    batch = section(golden, "batch")
    load(model, section(golden, "weights"))
    both = [run(model, batch), run(model.double(), batch)]
    inputs = {k: v for k, v in golden.items() if k.startswith(("config", "weights/", "batch/"))}
    save(file, inputs | both[0] | under("float32_error", float32_errors(*both)))


def make_model(shape: dict, name: str = "") -> PreTrainedModel:
    """Returns a model of transformers.

    Args:
      shape: Keys of its config.json.
      name: The class; by default, that of pre-training.
    """
    model_type = shape.get("model_type", "bert")
    (name,) = [name] if name else shape.get("architectures", [CLASSES[model_type]])
    make = getattr(transformers, name)
    return make(make.config_class(**shape, attn_implementation="eager")).eval()


def load(model: PreTrainedModel, weights: dict, precision: torch.dtype = torch.float32) -> None:
    """Sets every parameter."""
    for name, parameter in model.named_parameters():
        parameter.data = torch.tensor(weights[name]).to(precision)
    model.tie_weights()


def run_of(model: PreTrainedModel):
    """Returns the function that computes the outputs of a model."""
    runs = {"ElectraForPreTraining": detection, "BartForConditionalGeneration": denoising}
    return runs.get(type(model).__name__, pretraining)


def record_minilm() -> None:
    folder = package_folder("minilm")
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    golden = read_golden("real_minilm")
    batch = section(golden, "batch")

    def run(model):
        hidden_states, pooled = encode(model, batch)
        loss = probe(hidden_states[-1], batch["attention_mask"]) + probe(pooled)
        return hidden_states, {"pooled_output": pooled, "loss": loss}

    save("real_minilm", record_real(model, "bert.", golden, run))


def record_antiberty() -> None:
    folder = package_folder("antiberty")
    # AntiBERTy's own heads, which replace the next-sentence head, are omitted.
    model = BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()
    golden = read_golden("real_antiberty")
    batch, every = section(golden, "batch"), golden["masked_every"]

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

    golden = record_real(model, "", golden, run)
    model.float()
    for name, antibody in ANTIBODIES.items():
        rows = masked_one_by_one(antibody, int(every))
        with torch.no_grad():
            hidden_states, _ = encode(model.bert, rows)
            hidden = gather(hidden_states[-1], rows["masked_lm_positions"])
            best = model.cls.predictions(hidden)[:, 0].topk(2)
        golden[f"predicted/{name}"] = best.indices[:, 0].numpy().astype(np.int32)
        # The margin between the best and the second prediction; near 0, rounding would decide.
        print(f"{name}: smallest lead {float((best.values[:, 0] - best.values[:, 1]).min()):.4f}")
    save("real_antiberty", golden | {"masked_every": every})


def record_real(model, prefix, golden, run) -> dict[str, np.ndarray]:
    """Runs a trained model in both precisions; stores samples of large arrays."""
    at, both = golden["at"], []
    for precision in (torch.float32, torch.float64):
        model.to(precision).zero_grad()
        hidden_states, outputs = run(model)
        outputs["loss"].backward()
        rows, columns = at.T
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
        **{key: value for key, value in golden.items() if key.startswith("batch/")},
        "at": at,
        **rest,
        **sketches,
        **under("float32_error", float32_errors(*both)),
    }


def pretraining(model: PreTrainedModel, batch: dict) -> dict[str, np.ndarray]:
    """Returns all outputs of a model for a batch, and the gradients of its total loss."""
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
    elif model.config.model_type == "eurobert":
        mlm_logits = model.lm_head(model.model.norm(hidden_states[-1]))
    elif model.config.model_type == "esm":
        mlm_logits = model.lm_head(model.esm.encoder.emb_layer_norm_after(hidden_states[-1]))
    elif model.config.model_type == "esmc":
        mlm_logits = model.lm_head(model.esmc.norm(hidden_states[-1]))
    elif model.config.model_type == "nomic_bert":
        mlm_logits = model.cls(hidden_states[-1])
    else:
        mlm_logits = model.lm_head(hidden_states[-1])
    outputs["mlm_logits"] = gather(mlm_logits, batch["masked_lm_positions"])
    outputs["mlm_loss"] = masked_mean(outputs["mlm_logits"], batch)
    outputs["loss"] = sum(value for key, value in outputs.items() if key.endswith("_loss"))
    return with_gradients(model, outputs)


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
    outputs = {"hidden_states": torch.stack(hidden_states), "rtd_logits": logits}
    return with_gradients(model, outputs | {"rtd_loss": loss, "loss": loss})


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
    outputs = {
        "hidden_states": torch.stack(output.encoder_hidden_states),
        "decoder_hidden_states": torch.stack(output.decoder_hidden_states),
        "denoising_logits": output.logits,
        "denoising_loss": loss,
        "loss": loss,
    }
    return with_gradients(model, outputs)


def encode(bert: PreTrainedModel, batch: dict):
    """Returns all hidden states, the embeddings' first, and the pooled output, if any."""
    has_types = getattr(bert.config, "type_vocab_size", 0) and bert.config.model_type != "flaubert"
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if has_types else []))
    inputs = {name: torch.tensor(batch[name]).long() for name in names}
    last: list[torch.Tensor] = []
    # transformers 5 gives the output of the final LayerNorm in place of the last block's.
    blocks = {"eurobert": "layers", "esmc": "layers", "esm": "encoder.layer"}.get(
        bert.config.model_type
    )
    if blocks:
        block = bert.get_submodule(blocks)[-1]
        block.register_forward_hook(lambda module, given, output: last.append(output))
    output = bert(**inputs, output_hidden_states=True)
    states = (*output.hidden_states[: -len(last) or None], *last[-1:])
    return states, output.get("pooler_output")


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
    trained BERT, so that LayerNorm's epsilon has an effect. The output matrices of models with
    LayerNorm before each sublayer are too, because their outputs add up over the layers.
    """
    rng = np.random.RandomState(seed)
    for name, parameter in model.named_parameters():
        small = ["embeddings.weight", "shared.weight", "embed_positions.weight", ".Wo.weight"]
        small += ["embed_tokens.weight", ".o_proj.weight", ".down_proj.weight"]
        # ESM-2's block.
        small += [".output.dense.weight"] if hasattr(model, "esm") else []
        scale = 0.05 if name.endswith(tuple(small)) else 0.3
        value = scale * rng.standard_normal(parameter.shape)
        parameter.data = torch.tensor((value + is_scale(name)).astype(np.float32))
    model.tie_weights()


def is_scale(name: str) -> bool:
    """Returns whether a parameter is the scale of a LayerNorm."""
    return "norm" in name.lower() and name.endswith("weight")


def is_key_bias(name: str) -> bool:
    return name.endswith(("key.bias", "k_lin.bias", "k_proj.bias"))


def with_gradients(
    model: torch.nn.Module, outputs: dict[str, torch.Tensor]
) -> dict[str, np.ndarray]:
    """Returns the outputs, and the gradients of `loss`, as arrays."""
    outputs["loss"].backward()
    values = {key: value.detach().numpy() for key, value in outputs.items()}
    return values | under("gradients", gradients(model, ""))


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


def save(name: str, values: dict) -> None:
    save_arrays(name, values)
    errors = section(values, "float32_error")
    gradients = section(errors, "gradients")
    print(
        f"float32's own errors: hidden states {errors['hidden_states']:.1e}, "
        f"loss {errors['loss']:.1e}, gradients "
        # A key's bias changes no probability: its gradient is only rounding error.
        f"{max(v for k, v in gradients.items() if not is_key_bias(k)):.1e} relative"
    )


if __name__ == "__main__":
    torch.set_num_threads(2)
    if sys.argv[1:2] == ["new"]:
        add(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
