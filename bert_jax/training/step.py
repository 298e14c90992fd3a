"""The train and evaluation steps: pure functions of state and batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.models import BertForPreTraining
from bert_jax.objectives.mlm import DENOMINATOR_EPSILON, mlm_sums
from bert_jax.objectives.nsp import nsp_sums
from bert_jax.training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


def make_train_step(
    model: BertForPreTraining,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[jax.Array], jax.Array],
    *,
    seed: int,
    accumulation_steps: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Builds the step of both objectives: total loss = MLM + NSP, unweighted.

    With `accumulation_steps` above 1 the batch is cut in that many microbatches,
    one after another on the device. Each one's loss is divided by the weight of
    the whole batch, so that the sum of gradients is the big batch's gradient,
    although microbatches differ in their number of masked tokens.

    Dropout depends on (seed, step, microbatch) alone.
    """

    def loss_and_sums(params, batch, dropout_key, mlm_weight, num_sequences):
        output = model.apply(
            {"params": params},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["attention_mask"],
            batch["masked_lm_positions"],
            deterministic=False,
            rngs={"dropout": dropout_key},
        )
        mlm = mlm_sums(output.mlm_logits_BxMxW, batch["masked_lm_ids"], batch["masked_lm_weights"])
        labels_B = batch["next_sentence_labels"]
        nsp = nsp_sums(output.nsp_logits_Bx2, labels_B, jnp.ones(labels_B.shape, jnp.float32))
        mlm_loss = mlm["loss"] / (mlm_weight + DENOMINATOR_EPSILON)
        nsp_loss = nsp["loss"] / num_sequences
        sums = {
            "loss": mlm_loss + nsp_loss,
            "mlm_loss": mlm_loss,
            "nsp_loss": nsp_loss,
            "mlm_accuracy": mlm["correct"] / (mlm_weight + DENOMINATOR_EPSILON),
            "nsp_accuracy": nsp["correct"] / num_sequences,
        }
        return mlm_loss + nsp_loss, sums

    def gradients(params, batch, key):
        mlm_weight = jnp.sum(batch["masked_lm_weights"])
        num_sequences = batch["next_sentence_labels"].shape[0]
        grad = jax.grad(loss_and_sums, has_aux=True)
        if accumulation_steps == 1:
            return grad(params, batch, jax.random.fold_in(key, 0), mlm_weight, num_sequences)

        def one(carry, inputs):
            index, microbatch = inputs
            part = grad(
                params, microbatch, jax.random.fold_in(key, index), mlm_weight, num_sequences
            )
            return jax.tree.map(jnp.add, carry, part), None

        microbatches = jax.tree.map(_split(accumulation_steps), batch)
        first = jax.tree.map(lambda x: x[0], microbatches)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(grad, params, first, key, mlm_weight, num_sequences),
        )
        total, _ = jax.lax.scan(one, zeros, (jnp.arange(accumulation_steps), microbatches))
        return total

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        grads, metrics = gradients(state.params, batch, key)
        metrics["grad_norm"] = optax.global_norm(grads)
        metrics["learning_rate"] = schedule(state.step)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), metrics

    return train_step


def make_eval_step(model: BertForPreTraining) -> Callable[[Any, Batch, jax.Array], Metrics]:
    """Builds (params, batch, unigram_log_probs_V) -> sums over the batch.

    The batch has `example_weights` [B] float32, 0 for rows that only fill it up.
    The unigram baseline is judged on the very same masked tokens: its loss is
    -log p(token), its one guess the most frequent token. `random_next` counts the
    pairs whose B is random, for the baseline of always guessing the commoner label.
    """

    def eval_step(params: Any, batch: Batch, unigram_log_probs_V: jax.Array) -> Metrics:
        output = model.apply(
            {"params": params},
            batch["input_ids"],
            batch["token_type_ids"],
            batch["attention_mask"],
            batch["masked_lm_positions"],
            deterministic=True,
        )
        row_weights_B = batch["example_weights"]
        weights_BxM = batch["masked_lm_weights"] * row_weights_B[:, None]
        labels_BxM = batch["masked_lm_ids"]
        mlm = mlm_sums(output.mlm_logits_BxMxW, labels_BxM, weights_BxM)
        nsp = nsp_sums(output.nsp_logits_Bx2, batch["next_sentence_labels"], row_weights_B)
        guess = jnp.argmax(unigram_log_probs_V)
        return {
            "mlm_loss": mlm["loss"],
            "mlm_correct": mlm["correct"],
            "mlm_weight": mlm["weight"],
            "nsp_loss": nsp["loss"],
            "nsp_correct": nsp["correct"],
            "num_sequences": nsp["weight"],
            "random_next": jnp.sum(row_weights_B * batch["next_sentence_labels"]),
            "unigram_mlm_loss": -jnp.sum(weights_BxM * unigram_log_probs_V[labels_BxM]),
            "unigram_mlm_correct": jnp.sum(weights_BxM * (labels_BxM == guess)),
        }

    return eval_step


def _split(parts: int) -> Callable[[jax.Array], jax.Array]:
    """[B, ...] -> [parts, B / parts, ...] without moving rows between devices.

    Microbatch i takes every `parts`-th row: a device that holds a contiguous
    slice of the batch finds its share of every microbatch in that slice.
    """

    def split(x: jax.Array) -> jax.Array:
        return jnp.swapaxes(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 0, 1)

    return split
