"""One config's model, optimizer and mesh, and its compiled steps."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from bert_jax.models import BertConfig, BertForPreTraining
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.parallel import sharding as sharding_lib
from bert_jax.training import flops
from bert_jax.training import state as state_lib
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.schedule import make_schedule
from bert_jax.training.stages import Stage, resolve_stages
from bert_jax.training.step import make_eval_step, make_train_step

# Batches already on the devices while a step runs.
DEVICE_PREFETCH = 2


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Everything about a run that does not change from step to step.

    Attributes:
      train_step: (state, batch) -> (state, metrics), compiled once for each stage's
        shapes; the state given is donated.
      eval_step: (params, batch, unigram_log_probs_V) -> sums.
      shardings: Of the whole state.
    """

    model_config: BertConfig
    model: BertForPreTraining
    mesh: Mesh
    stages: Sequence[Stage]
    optimizer: optax.GradientTransformation
    shardings: state_lib.TrainState
    train_step: Callable[..., Any]
    eval_step: Callable[..., Any]
    seed: int

    @classmethod
    def from_config(cls, config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Self:
        """Builds one for a validated config, on all devices unless told otherwise.

        Raises:
          UserError: the mesh or a parameter does not divide over the devices.
        """
        model_config = BertConfig.from_dict(
            config.model,
            dtype=jnp.dtype(config.dtype),
            scan_layers=config.scan_layers,
            remat=config.remat,
        )
        model = BertForPreTraining(model_config)
        mesh = mesh_lib.make_mesh(config.mesh, devices)
        stages = resolve_stages(config.train)
        schedule = make_schedule(config.schedule, stages)
        optimizer = make_optimizer(config.optimizer, schedule)

        def shardings_of(boxed):
            return sharding_lib.param_shardings(boxed, mesh, config.sharding)

        shardings = state_lib.state_shardings(model, optimizer, shardings_of)
        rows, everywhere = sharding_lib.batch_sharding(mesh), sharding_lib.replicated(mesh)
        train_step = make_train_step(
            model,
            optimizer,
            schedule,
            seed=config.seed,
            accumulation_steps=config.train.gradient_accumulation_steps,
        )
        return cls(
            model_config=model_config,
            model=model,
            mesh=mesh,
            stages=stages,
            optimizer=optimizer,
            shardings=shardings,
            # jax.jit with shardings is what was called pjit.
            train_step=jax.jit(
                train_step,
                in_shardings=(shardings, rows),
                out_shardings=(shardings, everywhere),
                donate_argnums=0,
            ),
            eval_step=jax.jit(
                make_eval_step(model),
                in_shardings=(shardings.params, rows, everywhere),
                out_shardings=everywhere,
            ),
            seed=config.seed,
        )

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

    def put(self, batches: Iterable[dict[str, np.ndarray]]) -> Iterator[dict[str, jax.Array]]:
        """Moves batches to the devices, a few ahead of their use."""
        ready = []
        for batch in batches:
            ready.append(sharding_lib.put_batch(batch, self.mesh))
            if len(ready) > DEVICE_PREFETCH:
                yield ready.pop(0)
        yield from ready

    def flops_per_step(self, stage: Stage) -> float:
        """Analytic FLOPs of one train step over all devices."""
        return stage.batch_size * flops.train_flops_per_sequence(
            self.model_config, stage.max_seq_length, stage.max_predictions_per_seq
        )

    def peak_flops_per_second(self) -> float | None:
        """bf16 peak of all the mesh's devices; None where it is not known."""
        peak = flops.peak_flops_per_second(self.mesh.devices.flat[0])
        return None if peak is None else peak * self.mesh.devices.size

    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract_state().params))
