"""The config keys that pre-training and fine-tuning share, with the same meaning."""

import dataclasses
import functools

from bert_jax.base.errors import UserError
from bert_jax.config.schema import Field, Owner, Section
from bert_jax.models.bert_config import BertConfig

_free = functools.partial(Field, owner=Owner.NONE)
_of_this_run = functools.partial(Field, owner=Owner.THIS_RUN)
# The shapes of the learning rate that have an exponent, those that have an end factor, and all.
POWER_SHAPES = ("bert", "linear_after_warmup", "product")
ENDING_SHAPES = ("linear", "one_minus_sqrt", "cosine")
SHAPES = (*POWER_SHAPES, "inverse_root", "constant", *ENDING_SHAPES)

GRADIENT_ACCUMULATION_STEPS = _free(
    1,
    "Number of microbatches that each batch is split into, to save memory. Their gradients are "
    "summed, so the update is the same as without this, up to rounding.",
    above=0,
)
EVAL_BATCH_SIZE = _free(
    64, "Number of sequences in each evaluation step, over all devices.", above=0
)

# The keys of config.model.
MODEL: Section = {
    key.name: Field(
        **{name: fact for name, fact in key.metadata.items() if name != "of_weights"},
        owner=Owner.WEIGHTS if key.metadata["of_weights"] else Owner.RUN,
    )
    for key in dataclasses.fields(BertConfig)
    if key.metadata
}

COMMON: Section = {
    "seed": Field(
        0,
        "Seed of initial weights, data order, masks and dropout. It does not affect evaluation.",
        at_least=0,
    ),
    "workdir": _free(
        "",
        "Directory for everything that the run writes. The flag --workdir takes precedence. This "
        "and every other path may be gs://BUCKET/NAME.",
    ),
    "init_from": _of_this_run(
        "",
        "Weights to start from at step 0: a work directory or one of its checkpoints, a Hugging "
        "Face directory, or a Google checkpoint. They determine the model, its family, the "
        "tokenizer and the vocabulary. If empty, the weights are random. A run that already has "
        "its own checkpoint resumes from that instead.",
    ),
    "sinusoidal_positions": Field(
        0.0,
        "If above 0, the learned position table starts as sinusoids of this amplitude (Vaswani et "
        "al. 2017, section 3.5). Short runs then learn attention in fewer steps and reach a lower "
        "loss, but fine-tuning may score lower (docs/results.md). About 4 times "
        "model.initializer_range worked best. If 0, the table starts at random, as in BERT. The "
        "key has no effect on weights from init_from or a checkpoint.",
        only_with=("model.rope_theta", 0),
        at_least=0,
    ),
    "dtype": Field(
        "bfloat16",
        "Type of the activations. Parameters, the statistics of LayerNorm and softmax, the loss "
        "and the optimizer always use float32. Matrix products use JAX's default precision: TPUs "
        "and GPUs round float32 factors unless JAX's own jax_default_matmul_precision is highest.",
        choices=("float32", "bfloat16"),
    ),
    "sharding": _free(
        "dp",
        "How parameters are laid out over the mesh: dp replicates them, fsdp shards them over the "
        "axis fsdp, tp over the axis model, and fsdp_tp over both. zero1 is fsdp, but gathers a "
        "copy of all matrices once a step, not at each use. auto is dp unless mesh.fsdp is above "
        "1, or 0 on several TPU chips; there it is zero1 on v5p and v6e if their memory has room "
        "for the copies, and fsdp elsewhere.",
        choices=("auto", "dp", "fsdp", "zero1", "tp", "fsdp_tp"),
    ),
    "overlap_collectives": _free(
        True,
        "Whether TPUs sum gradients and gather parameters while they compute, with the options of "
        "bert_jax/parallel/compiler_options.py. Results should be the same up to rounding; "
        "docs/hardware.md says how to compare.",
    ),
    "fused_attention": Field(
        True,
        "Whether a kernel that never writes the probabilities to memory computes attention in "
        "bfloat16. That for TPUs (v4 or later) needs a sequence length that is a multiple of 128 "
        "and at most 512, and heads whose total width on each device is a multiple of 128 (two "
        "heads of depth 64, for example). That for NVIDIA GPUs (compute capability 8.0 or "
        "later) needs a multiple of 64, at least 128, heads of depth 16, 32, 64 or 128, and a "
        "version of JAX that can lower Pallas kernels to Triton; it is also for local layers. On "
        "TPUs, models with rotary positions and no attention dropout use JAX's splash kernel above "
        "512 tokens, local layers included. Otherwise the key has no effect.",
    ),
    "remat": _free(
        "none",
        "What the backward pass recomputes to save memory: none, dots (everything but matrix "
        "products) or full (everything but the input of each block).",
        choices=("none", "dots", "full"),
    ),
    "optimizer": {
        "name": Field(
            "adamw",
            "Optimizer. adamw: BERT's Adam with decoupled weight decay. lamb: the same, scaled by "
            "the norm of each tensor. stable_adamw: the update of a tensor is divided by the root "
            "mean square of g / sqrt(v) where that is above 1 (ModernBERT). muon: the matrices of "
            "the encoder's blocks move along their orthogonalized momentum, all other parameters "
            "as with adamw.",
            choices=("adamw", "lamb", "stable_adamw", "muon"),
        ),
        "b1": _of_this_run(0.9, "Decay rate of the first moment.", at_least=0, below=1),
        "b2": _of_this_run(0.999, "Decay rate of the second moment.", at_least=0, below=1),
        "eps": _of_this_run(1e-6, "Added to the square root of the second moment.", above=0),
        "momentum": _of_this_run(
            0.95,
            "Decay rate of muon's momentum. The others have b1.",
            at_least=0,
            below=1,
            only_with=("optimizer.name", "muon"),
        ),
        "weight_decay": _of_this_run(
            0.01,
            "Decoupled weight decay. LayerNorm parameters and biases are exempt, unless decay_all "
            "is set.",
            at_least=0,
        ),
        "decay_all": Field(
            False, "Whether LayerNorm parameters and biases are decayed too, as in RoBERTa."
        ),
        "bias_correction": Field(
            False,
            "Whether Adam's moments are divided by 1 - b^t. The original BERT does not do this.",
        ),
        "eps_before_correction": Field(
            False,
            "Whether eps is added to the root of the second moment before the correction, as in "
            "RoBERTa's Adam, instead of after it. Without bias_correction both are the same.",
        ),
        "max_grad_norm": _of_this_run(
            1.0,
            "Gradients with a larger global norm are scaled down to this norm before the update. "
            "0 turns clipping off.",
            at_least=0,
        ),
    },
    "schedule": {
        "shape": _of_this_run(
            "bert",
            "Form of the rate at step s, where t is the fraction of steps done. bert: "
            "peak * s / warmup_steps during the warm-up, then peak * (1 - t)^decay_power; the rate "
            "drops a little at the end of the warm-up. linear_after_warmup (RoBERTa): the decay "
            "begins at the peak, and t counts only the steps after the warm-up. product (ELECTRA): "
            "during the warm-up, the decay is multiplied by s / warmup_steps. inverse_root (XLM, "
            "FlauBERT): after the warm-up, peak * (warmup_steps / s)^0.5. The others count t "
            "as linear_after_warmup does; after the warm-up, constant is the peak, and linear, "
            "one_minus_sqrt and cosine fall from the peak to end_factor times the peak, in "
            "proportion to 1 - t, 1 - sqrt(t) and (1 + cos(pi t)) / 2.",
            choices=SHAPES,
        ),
        "end_factor": _of_this_run(
            0.0,
            "Fraction of the peak that linear, one_minus_sqrt and cosine end at.",
            at_least=0,
            at_most=1,
            only_with=("schedule.shape", *ENDING_SHAPES),
        ),
        "peak_learning_rate": _of_this_run(
            1e-4, "Learning rate that the warm-up rises toward.", above=0
        ),
        "warmup_steps": _of_this_run(
            10_000.0,
            "Steps of linear warm-up from 0. A value below 1 is a fraction of all steps, rounded "
            "down.",
            at_least=0,
        ),
        "decay_power": _of_this_run(
            1.0,
            "Exponent of the decay to 0, (1 - t)^decay_power, of bert, linear_after_warmup and "
            "product; schedule.shape defines t.",
            above=0,
            only_with=("schedule.shape", *POWER_SHAPES),
        ),
    },
    "mesh": {
        "data": _free(
            -1,
            "Devices along the axis that shards only the batch. One axis of the mesh may be -1: "
            "it takes all remaining devices.",
            above=0,
            also=-1,
        ),
        "fsdp": _free(
            0,
            "Devices along the axis that shards the batch and, with sharding=fsdp, zero1 or "
            "fsdp_tp, the parameters. 0 chooses: up to 64 in each slice, with at least 16 of the "
            "model's columns on each, where parameters are sharded over this axis, and 1 "
            "elsewhere.",
            at_least=0,
            also=-1,
        ),
        "model": _free(
            1,
            "Devices along the axis of tensor parallelism, which shards heads, MLP and logits.",
            above=0,
            also=-1,
        ),
    },
    "checkpoint": {
        "every_steps": _free(1000, "Steps between checkpoints.", above=0),
        "keep": _free(3, "Number of newest checkpoints to keep.", above=0),
        "keep_every_steps": _free(
            0,
            "Also keep checkpoints whose step is a multiple of this. 0 keeps only the newest ones.",
            at_least=0,
        ),
    },
    "log": {
        "every_steps": _free(
            0,
            "Steps between lines of metrics. 0 means a twentieth of the run, but at most 50 steps, "
            "so that the curves of a short run have 20 points.",
            at_least=0,
        ),
        "wandb": _free(
            False,
            "Whether Weights & Biases also gets the metrics, the config and the results. Without "
            "this key, nothing is sent (docs/using.md).",
        ),
    },
    "profile": {
        "start_step": _free(
            10, "First step to trace for xprof and TensorBoard, into WORKDIR/profile.", above=0
        ),
        "num_steps": _free(
            0,
            "Number of steps to trace; 0 for none. A few are enough; long traces are large.",
            at_least=0,
        ),
    },
}


def layer_numbers(text: str, key: str) -> tuple[int, ...]:
    """Parses the numbers in a text such as "0,2,4"; `key` names it in messages."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise UserError(f"{key} is {text!r}; it must be numbers such as 0,2,4") from None
