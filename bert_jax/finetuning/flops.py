"""Floating-point operations of a step of fine-tuning."""

from bert_jax.models.task_models import TaskModel
from bert_jax.objectives.language_model import decoder_flops
from bert_jax.training.flops import encoder_flops


def task_flops_per_sequence(model: TaskModel, length: int) -> float:
    """Computes the FLOPs of forward and backward for one sequence of a task.

    Args:
      length: Tokens of a sequence; each of C choices is a sequence.
    """
    c, width = model.config, model.config.hidden_size
    num_read = length if model.PER_TOKEN else 1
    # The dense layers between the encoder and the head: a pooler, or that of the masked-LM head.
    pooling = c.classifier_pooling
    num_dense = num_read if pooling != "pooler" else int(model.POOLED)
    if pooling == "late" and model.POOLED:
        num_dense = length
    elif (pooling == "pooler" and c.pooler_act == "none") or not (c.head_transform or model.POOLED):
        num_dense = 0
    head = 2 * width**2 * num_dense + 2 * num_read * width * model.num_outputs
    forward = encoder_flops(c, length, None) + head
    if c.num_decoder_layers:
        # The decoder reads the same tokens; its logits are not computed.
        forward += decoder_flops(c, length, length) - 2 * length * width * c.vocab_size
    return 3.0 * forward
