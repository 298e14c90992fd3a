"""One config's model, optimizer and mesh, and its compiled steps."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from bert_jax.models import BertConfig, BertForPreTraining
from bert_jax.models.task_models import TaskModel
from bert_jax.objectives.objective import Objective
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel.sharding import Layout
from bert_jax.training import flops
from bert_jax.training import state as state_lib
from bert_jax.training.layer_rates import LayerRates
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.schedule import make_schedule
from bert_jax.training.stages import Stage, resolve_stages
from bert_jax.training.step import PRE_TRAINING, make_eval_step, make_train_step

# Batches already on the devices while a step runs.
DEVICE_PREFETCH = 2


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Everything about a run that does not change from step to step.

    Attributes:
      train_step: (state, batch) -> (state, metrics), compiled once for each stage's
        shapes; the state given is donated.
      eval_step: (params, batch, *operands) -> what the objective's `evaluate` gives, whole
        on every device; of pre-training (params, batch, unigram_log_probs_V) -> sums.
      objective: What the model is trained for.
      layout: What lies where on the mesh.
      shardings: Of the whole state.
      rates: Where learning rates differ between layers.
    """

    model_config: BertConfig
    model: nn.Module
    objective: Objective
    layout: Layout
    stages: Sequence[Stage]
    optimizer: optax.GradientTransformation
    shardings: state_lib.TrainState
    train_step: Callable[..., Any]
    eval_step: Callable[..., Any]
    seed: int
    rates: LayerRates | None = None

    @classmethod
    def from_config(cls, config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Self:
        """Builds pre-training's for a validated config, on all devices unless told otherwise.

        Raises:
          UserError: as `create`.
        """
        stages = resolve_stages(config.train)
        return cls.create(config, BertForPreTraining, PRE_TRAINING, stages, devices=devices)

    @classmethod
    def create(
        cls,
        config: ConfigDict,
        make_model: Callable[[BertConfig], nn.Module],
        objective: Objective,
        stages: Sequence[Stage],
        *,
        rates: LayerRates | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> Self:
        """Builds one of any model and objective.

        Args:
          config: Validated; what pre-training's and fine-tuning's have in common is used.
          make_model: The model of a BertConfig.
          objective: What it is trained for.
          stages: The run's.
          rates: Where learning rates differ between layers.
          devices: All unless told otherwise.

        Raises:
          UserError: the mesh or a parameter does not divide over the devices, or
            `config.sharding_rules` cannot be followed.
        """
        mesh = mesh_lib.make_mesh(config.mesh, devices)
        model_config = BertConfig.from_dict(
            config.model,
            sinusoidal_positions=config.sinusoidal_positions,
            dtype=jnp.dtype(config.dtype),
            scan_layers=config.scan_layers,
            remat=config.remat,
            fused_attention=config.fused_attention and _has_kernels(mesh.devices.flat[0]),
        )
        model = make_model(model_config)
        layout = Layout.create(
            mesh, config.sharding, config.sharding_rules, config.max_replicated_share
        )
        schedule = make_schedule(config.schedule, stages)
        optimizer = make_optimizer(config.optimizer, schedule, rates.scaling() if rates else None)
        rows, everywhere = layout.batch, layout.replicated
        shardings = state_lib.state_shardings(model, optimizer, layout.params, everywhere)
        train_step = make_train_step(
            model,
            optimizer,
            schedule,
            seed=config.seed,
            accumulation_steps=config.train.gradient_accumulation_steps,
            objective=objective,
            rates=rates,
        )
        return cls(
            model_config=model_config,
            model=model,
            objective=objective,
            layout=layout,
            stages=stages,
            optimizer=optimizer,
            shardings=shardings,
            # jax.jit with shardings is what was called pjit.
            train_step=jax.jit(
                _laid_out(train_step, layout),
                in_shardings=(shardings, rows),
                out_shardings=(shardings, everywhere),
                donate_argnums=0,
            ),
            eval_step=jax.jit(
                _laid_out(make_eval_step(model, objective), layout),
                in_shardings=(shardings.params, rows, *[everywhere] * objective.eval_operands),
                out_shardings=everywhere,
            ),
            seed=config.seed,
            rates=rates,
        )

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    def init_state(self) -> state_lib.TrainState:
        """Step 0: fresh weights from the seed, each created where it will live."""
        return state_lib.init_state(self.model, self.optimizer, self.seed, self.shardings)

    def state_of(self, params: Any) -> state_lib.TrainState:
        """Step 0 with given weights, a pytree of arrays of the host; moments are zero."""

        def create(params: Any) -> state_lib.TrainState:
            return state_lib.TrainState.create(params, self.optimizer)

        placed = jax.device_put(params, self.shardings.params)
        return jax.jit(create, out_shardings=self.shardings)(placed)

    def abstract_state(self) -> state_lib.TrainState:
        """What a checkpoint is restored into."""
        return state_lib.abstract_state(self.model, self.optimizer, self.shardings)

    def abstract_batch(self, stage: Stage) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes, dtypes and shardings of a stage's batches: what a step is compiled for."""
        rows, length = stage.batch_size, stage.max_seq_length
        shapes = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), (rows, length))
        for name in ("positions", "ids", "weights"):
            shapes[f"masked_lm_{name}"] = (rows, stage.max_predictions_per_seq)
        shapes["next_sentence_labels"] = (rows,)
        return {
            name: jax.ShapeDtypeStruct(
                shape,
                jnp.float32 if name.endswith("weights") else jnp.int32,
                sharding=self.layout.batch,
            )
            for name, shape in shapes.items()
        }

    def put(self, batches: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, jax.Array]]:
        """Moves batches to the devices, a few ahead of their use."""
        ready = []
        for batch in batches:
            ready.append(self.layout.put_batch(batch))
            if len(ready) > DEVICE_PREFETCH:
                yield ready.pop(0)
        yield from ready

    def flops_per_step(self, stage: Stage) -> float:
        """Analytic FLOPs of one train step over all devices."""
        length = stage.max_seq_length
        if isinstance(self.model, TaskModel):
            one = flops.task_flops_per_sequence(self.model, length, self.rates)
        else:
            one = flops.train_flops_per_sequence(
                self.model_config, length, stage.max_predictions_per_seq
            )
        return stage.batch_size * one

    def flops_until(self, step: float) -> float:
        """Analytic FLOPs of all train steps before one."""
        return sum(
            min(max(step - stage.first_step, 0), stage.num_steps) * self.flops_per_step(stage)
            for stage in self.stages
        )

    def peak_flops_per_second(self) -> float | None:
        """bf16 peak of all the mesh's devices; None where it is not known."""
        peak = flops.peak_flops_per_second(self.mesh.devices.flat[0])
        return None if peak is None else peak * self.mesh.devices.size

    def num_parameters(self) -> int:
        """The model's own; what fills up the vocabulary is none of it."""
        params, c = self.abstract_state().params, self.model_config
        padding = c.num_padding_parameters
        if "mlm" not in params:
            # The masked-LM head's bias has a number for each row of the embeddings.
            padding -= c.padded_vocab_size - c.vocab_size
        return sum(leaf.size for leaf in jax.tree.leaves(params)) - padding


def _laid_out(step: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    """The step, whose activations are divided as the layout says."""

    @functools.wraps(step)
    def laid_out(*args: Any) -> Any:
        with layout.in_scope():
            return step(*args)

    return laid_out


def _has_kernels(device: jax.Device) -> bool:
    """Whether Pallas compiles for it; for the first TPUs the compiler aborts."""
    return device.platform == "tpu" and device.device_kind not in ("TPU v2", "TPU v3")
