"""Records the logits of two fine-tuned classes of transformers with a small BART.

    pip install torch==2.13.0 'transformers<5'
    python -m tests.golden.record_bart_heads

tests/interop/test_huggingface_heads.py compares bert_jax with the file. Recorded with torch 2.13.0
on a CPU and transformers 4.57.6.
"""

import json

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BartForSequenceClassification,
)

from tests.golden.inputs import FOLDER

PAD, END = 1, 2
# As far as possible, no two sizes are equal.
BART = {
    "vocab_size": 31,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 21,
    "decoder_start_token_id": END,
}


def make_bart() -> BartForConditionalGeneration:
    """Returns a BART with random parameters, the same in all versions of transformers."""
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**BART, attn_implementation="eager")).eval()
    rng = np.random.RandomState(4)
    for name, parameter in sorted(model.named_parameters()):
        values = rng.normal(size=parameter.shape) * 0.25
        values += 1 if name.endswith("norm.weight") or "layernorm" in name else 0
        with torch.no_grad():
            parameter.copy_(torch.tensor(values))
    return model


def make_inputs() -> dict[str, np.ndarray]:
    """Returns rows of unequal lengths, padded."""
    rng = np.random.RandomState(2)
    lengths = np.array([13, 5, 9, 2, 12])
    mask = (np.arange(13) < lengths[:, None]).astype(np.int32)
    ids = rng.randint(3, BART["vocab_size"], mask.shape)
    ids[:, 0] = 0
    ids[np.arange(len(lengths)), lengths - 1] = END
    return {"input_ids": np.where(mask, ids, PAD).astype(np.int32), "attention_mask": mask}


def task_logits(backbone: BartForConditionalGeneration, inputs: dict) -> dict[str, np.ndarray]:
    """Returns the weights of two task heads on an encoder and decoder, and their logits."""
    tensors = {name: torch.tensor(array).long() for name, array in inputs.items()}
    recorded, rng = {}, np.random.RandomState(5)
    for make_model, num_labels in (
        (BartForSequenceClassification, 3),
        (BartForQuestionAnswering, 2),
    ):
        config = BartConfig(**BART, num_labels=num_labels, attn_implementation="eager")
        model = make_model(config).eval()
        model.model.load_state_dict(backbone.model.state_dict())
        prefix = make_model.__name__
        for name, parameter in sorted(model.named_parameters()):
            if not name.startswith("model."):
                with torch.no_grad():
                    parameter.copy_(torch.tensor(rng.normal(size=parameter.shape)))
                recorded[f"{prefix}/weights/{name}"] = parameter.detach().numpy()
        with torch.no_grad():
            outputs = model(**tensors)
        for name in ("logits", "start_logits", "end_logits"):
            if name in outputs:
                recorded[f"{prefix}/{name}"] = outputs[name].numpy()
    return recorded


def main() -> None:
    model, inputs = make_bart(), make_inputs()
    path = FOLDER / "bart_heads.npz"
    np.savez_compressed(
        path,
        config=np.array(json.dumps(BART)),
        **{f"inputs/{name}": array for name, array in inputs.items()},
        **{f"weights/{name}": p.detach().numpy() for name, p in model.named_parameters()},
        **task_logits(model, inputs),
    )
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
