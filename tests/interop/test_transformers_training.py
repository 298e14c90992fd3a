"""Fine-tuning steps against those of PyTorch and `transformers`."""

import jax
import numpy as np
import pytest

from bert_jax.commands.finetune import open_task_setup
from bert_jax.config.finetuning import filled_in, finetune_config
from bert_jax.finetuning import build
from bert_jax.finetuning.batches import training_batches
from bert_jax.finetuning.first_state import make_first_state
from bert_jax.interop.weights import flatten
from bert_jax.models.task_models import TaskModel
from tests.finetuning import small

pytestmark = pytest.mark.outside
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def test_fine_tuning_steps_match_pytorch(tmp_path, monkeypatch):
    """Compares the loss and gradient norm of every step, without dropout."""
    monkeypatch.setattr(TaskModel, "DROPOUT", 0.0)
    small.write_bert(tmp_path / "hf")
    small.write_rows(tmp_path / "data")
    config = finetune_config("table")
    rate, warmup = 5e-3, 8
    config.update_from_flattened_dict(
        {
            **small.OVERRIDES,
            "init_from": str(tmp_path / "hf"),
            "data.input": str(tmp_path / "data"),
            "model.hidden_dropout_prob": 0.0,
            "model.attention_probs_dropout_prob": 0.0,
            "train.num_epochs": 4.0,
            "schedule.peak_learning_rate": rate,
            "schedule.warmup_steps": float(warmup),
        }
    )
    setting = open_task_setup(config)
    config = filled_in(config, setting.model, setting.task.head, setting.task.labels)
    rows = setting.task.rows("train")
    num_steps = build.make_stage(config, rows).num_steps
    stage = build.make_stage(config, rows)
    trainer = build.make_trainer(config, stage)
    state = make_first_state(config, trainer, setting.read_weights)

    theirs = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path / "hf",
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.0,
    )
    head = flatten(jax.device_get(state.params), trainer.model_config)
    with torch.no_grad():
        theirs.classifier.weight.copy_(torch.tensor(head["classifier/dense/kernel"].T))
        theirs.classifier.bias.copy_(torch.tensor(head["classifier/dense/bias"]))
    parameters = {False: [], True: []}
    for name, parameter in theirs.named_parameters():
        parameters[name.endswith("bias") or "LayerNorm" in name].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters[False], "weight_decay": 0.01},
            {"params": parameters[True], "weight_decay": 0.0},
        ],
        lr=rate,
        eps=1e-6,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warmup if step < warmup else 1 - step / num_steps
    )
    theirs.train()
    names = ("input_ids", "token_type_ids", "attention_mask", "labels")
    batches = training_batches(rows, trainer, range(num_steps), batch_size=8)
    for step, batch in enumerate(batches):
        given = {name: torch.tensor(np.asarray(batch[name])).long() for name in names}
        state, metrics = trainer.train_step(state, batch)
        loss = theirs(**given).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        np.testing.assert_allclose(metrics["loss"], loss.item(), rtol=2e-5, err_msg=str(step))
        np.testing.assert_allclose(metrics["grad_norm"], float(norm), rtol=2e-4, err_msg=str(step))
    assert step == 79 and loss.item() < 0.3, "the model must learn"
