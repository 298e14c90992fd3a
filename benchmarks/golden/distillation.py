"""Records the losses of DistilBERT's distillation and their gradients with PyTorch.

    python -m benchmarks.golden.distillation

tests/objectives/test_distillation.py compares bert_jax with them. The student and the batch are
those of model_distilbert.npz; the teacher is a deeper BERT of the same width. The reductions are
those of `Distiller.step` in transformers' distillation project; the masked-LM loss is BERT's, as in
models.py.
"""

import json

import torch

from benchmarks.golden.models import encode, gather, gradients, load, make_model, masked_mean
from benchmarks.golden.recipe import save_arrays, under
from tests.golden.inputs import read_golden, section

TEMPERATURE = 2.0
WEIGHTS = {"soft_targets": 5.0, "mlm": 2.0, "hidden_cosine": 1.0}


def main() -> None:
    golden, reference = read_golden("distillation"), read_golden("model_distilbert")
    student = make_model(json.loads(str(reference["config"])))
    load(student, section(reference, "weights"))
    teacher = make_model(json.loads(str(golden["teacher_config"])), "BertForMaskedLM")
    load(teacher, section(golden, "teacher_weights"))
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
    golden |= under("losses", losses) | under("gradients", gradients(student, ""))
    save_arrays("distillation", golden)


if __name__ == "__main__":
    main()
