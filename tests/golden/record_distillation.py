"""Records the losses of DistilBERT's distillation and their gradients with PyTorch.

tests/objectives/test_distillation.py compares bert_jax with them. The student and the batch are
those of model_distilbert.npz; the teacher is a deeper BERT of the same width.

    pip install torch==2.13.0 'transformers<5' safetensors
    python -m tests.golden.record_distillation

Recorded with torch 2.13.0 on a CPU, transformers 4.57.6. The reductions are those of
`Distiller.step` in transformers' distillation project; the masked-LM loss is BERT's, as in
record_models.py.
"""

import json

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, DistilBertConfig, DistilBertForMaskedLM

from tests.golden.inputs import FOLDER, read_golden, section
from tests.golden.record_models import (
    encode,
    gather,
    gradients,
    masked_mean,
    randomize,
    under,
)

TEMPERATURE = 2.0
WEIGHTS = {"soft_targets": 5.0, "mlm": 2.0, "hidden_cosine": 1.0}
TEACHER = dict(
    vocab_size=57,
    hidden_size=20,
    num_hidden_layers=5,
    num_attention_heads=2,
    intermediate_size=28,
    max_position_embeddings=19,
    type_vocab_size=2,
)


def main() -> None:
    reference = read_golden("model_distilbert")
    shape = json.loads(str(reference["config"]))
    student = DistilBertForMaskedLM(DistilBertConfig(**shape, attn_implementation="eager")).eval()
    weights = section(reference, "weights")
    student.load_state_dict({k: torch.tensor(v) for k, v in weights.items()}, strict=False)
    student.tie_weights()
    teacher = BertForMaskedLM(BertConfig(**TEACHER, attn_implementation="eager")).eval()
    randomize(teacher, seed=50)
    # Otherwise the distributions of both would be nearly uniform.
    teacher.bert.embeddings.word_embeddings.weight.data *= 10
    batch = section(reference, "batch")

    states = encode(student.distilbert, batch)[0][-1]
    hidden = student.vocab_layer_norm(student.activation(student.vocab_transform(states)))
    logits = student.vocab_projector(hidden)
    with torch.no_grad():
        teacher_states = encode(teacher.bert, batch)[0][-1]
        teacher_logits = teacher.cls(teacher_states)
    real = torch.tensor(batch["attention_mask"]) > 0
    divergence = torch.nn.KLDivLoss(reduction="batchmean")(
        torch.log_softmax(logits[real] / TEMPERATURE, -1),
        torch.softmax(teacher_logits[real] / TEMPERATURE, -1),
    )
    cosine = torch.nn.CosineEmbeddingLoss()(
        states[real], teacher_states[real], torch.ones(int(real.sum()))
    )
    losses = {
        "soft_targets": TEMPERATURE**2 * divergence,
        "mlm": masked_mean(gather(logits, batch["masked_lm_positions"]), batch),
        "hidden_cosine": cosine,
    }
    loss = sum(WEIGHTS[name] * value for name, value in losses.items())
    loss.backward()
    losses = {f"{name}_loss": value.item() for name, value in losses.items()}
    losses["loss"] = loss.item()
    print(losses)
    teacher_weights = {k: p.detach().numpy() for k, p in teacher.named_parameters()}
    np.savez_compressed(
        FOLDER / "distillation.npz",
        teacher_config=json.dumps(TEACHER),
        **under("teacher_weights", teacher_weights),
        **under("losses", losses),
        **under("gradients", gradients(student, "")),
    )


if __name__ == "__main__":
    main()
