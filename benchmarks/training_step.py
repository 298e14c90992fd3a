"""Compares the speed of a training step with transformers' PyTorch models on the same CPU.

    python benchmarks/training_step.py --config=configs/mini.py --batch_size=32 \\
        --torch_python=OTHER_VENV/bin/python [--config.KEY=VALUE ...]

The class of transformers is the one that an export uses. ELECTRA's generator and DistilBERT's
teacher, with random weights, are parts of both steps; SpanBERT's boundary objective is left out,
because transformers lacks it. Both steps have the same shapes, all losses, dropout, global-norm
clipping and AdamW in float32. The two sides run alternately in separate processes. The speed of a
machine drifts, so each turn (one run of each side) gives one ratio; the result is the median ratio.
torch and transformers may be installed in another virtual environment, without bert_jax.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARMUP_STEPS = 3
IGNORED = -100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", required=True, help="a config file that gives the size of the model"
    )
    parser.add_argument(
        "--torch_python", default=sys.executable, help="a Python that has torch and transformers"
    )
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, default=10, help="timed steps of each side in each turn"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    args, args.overrides = parser.parse_known_args()
    if args.theirs:
        print(json.dumps(time_transformers(json.loads(args.theirs))))
        return

    from bert_jax.training.stages import resolve_stages

    config = read_config(args)
    stage = resolve_stages(config)[args.stage - 1]
    ratios = []
    for turn in range(args.turns):
        ours = run_ours(args)
        theirs = run_transformers(args, config, stage)
        ratios.append(ours["sequences_per_second"] / theirs["sequences_per_second"])
        print(
            f"turn {turn + 1}: bert_jax {ours['sequences_per_second']:.2f} sequences/s, "
            f"transformers {theirs['sequences_per_second']:.2f} ({theirs['versions']}, "
            f"{theirs['attention']} attention), ratio {ratios[-1]:.2f}",
            flush=True,
        )
    shape = f"{args.batch_size} x {stage.max_seq_length}"
    print(f"{args.config}, {shape}: median ratio {statistics.median(ratios):.2f}")


def read_config(args: argparse.Namespace):
    from absl import flags
    from ml_collections import config_flags

    from bert_jax.config import command_line

    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    command_line.parse([__file__, f"--config={args.config}", *args.overrides], values)
    return values.config


def run_ours(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "ours.json"
        command = [sys.executable, "-m", "bert_jax.benchmark", f"--config={args.config}"]
        command += args.overrides
        command += [f"--stage={args.stage}", f"--steps={args.steps}", f"--output={output}"]
        command += [f"--config.train.batch_size={args.batch_size}", "--config.dtype=float32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())


def run_transformers(args: argparse.Namespace, config, stage) -> dict:
    from bert_jax.interop.families import load_family
    from bert_jax.interop.model_keys import write_family_keys
    from bert_jax.models.bert_config import BertConfig
    from bert_jax.pretraining.build import make_trainer

    family = load_family(config.family)
    model = BertConfig(**config.model)

    def keys(shape: BertConfig | None) -> dict | None:
        """Returns the contents of the config.json of transformers."""
        if shape is None:
            return None
        keys = write_family_keys(dataclasses.asdict(shape), family, "the config")
        return {"model_type": family.model_types[0]} | keys

    settings = {
        "model_class": family.pretraining_class(config.model.causal, config.objective.terms).name,
        "model": keys(model),
        "generator": keys(model.generator if model.generator_size else None),
        "teacher": keys(make_trainer(config).objective.teacher),
        "batch_size": args.batch_size,
        "length": stage.max_seq_length,
        "predictions": stage.max_predictions_per_seq,
        "steps": args.steps,
    }
    command = [args.torch_python, __file__, f"--config={args.config}"]
    command.append(f"--theirs={json.dumps(settings)}")
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def time_transformers(settings: dict) -> dict:
    """Times the step of transformers. This process has no bert_jax."""
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count())
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**settings["model"])
    model = getattr(transformers, settings["model_class"])(config).train()
    if settings["generator"]:
        loss = electra_loss(model, settings["generator"])
    elif settings["teacher"]:
        loss = distillation_loss(model, settings["teacher"])
    else:

        def loss(**inputs):
            return model(**inputs).loss

    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
    batch = random_batch(config, settings)
    seconds = []
    for _ in range(WARMUP_STEPS + settings["steps"]):
        started = time.perf_counter()
        loss(**batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    return {
        "sequences_per_second": settings["batch_size"] / statistics.median(seconds[WARMUP_STEPS:]),
        "attention": config._attn_implementation,
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


def random_batch(config, settings: dict) -> dict:
    import torch

    batch_size, length = shape = (settings["batch_size"], settings["length"])
    ids = torch.randint(config.vocab_size, shape)
    # Padding would not count as a position in some families.
    ids = torch.where(ids == config.pad_token_id, config.pad_token_id + 1, ids)
    labels = torch.full(shape, IGNORED)
    for row in range(batch_size):
        positions = torch.randperm(length)[: settings["predictions"]]
        labels[row, positions] = ids[row, positions]
    batch = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
    batch["labels"] = labels
    if getattr(config, "type_vocab_size", 1) > 1:
        segments = (torch.arange(length) >= length // 2).long()
        batch["token_type_ids"] = segments.expand(shape)
    second = {
        "BertForPreTraining": "next_sentence_label",
        "AlbertForPreTraining": "sentence_order_label",
    }
    if (name := settings["model_class"]) in second:
        batch[second[name]] = torch.randint(2, (batch_size,))
    return batch


def electra_loss(discriminator, generator_keys: dict):
    """Returns the loss of both parts; the generator becomes a part of `discriminator`."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**generator_keys)
    generator = transformers.ElectraForMaskedLM(config).train()
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.tie_weights()
    discriminator.generator = generator

    def loss(*, input_ids, labels, **inputs):
        output = generator(input_ids=input_ids, labels=labels, **inputs)
        masked = labels != IGNORED
        logits = output.logits.detach()[masked]
        sampled = torch.distributions.Categorical(logits=logits).sample()
        corrupted = input_ids.masked_scatter(masked, sampled)
        replaced = (corrupted != input_ids).long()
        found = discriminator(input_ids=corrupted, labels=replaced, **inputs)
        return output.loss + 50 * found.loss

    return loss


def distillation_loss(student, teacher_keys: dict):
    """Returns the three losses of DistilBERT at temperature 2, over all positions."""
    import torch
    import transformers
    from torch.nn import functional

    config = transformers.AutoConfig.for_model(**teacher_keys)
    teacher = transformers.AutoModelForMaskedLM.from_config(config).eval()

    def loss(**inputs):
        output = student(output_hidden_states=True, **inputs)
        with torch.no_grad():
            expected = teacher(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                output_hidden_states=True,
            )
        soft_targets = 4 * functional.kl_div(
            functional.log_softmax(output.logits.flatten(0, 1) / 2, -1),
            functional.softmax(expected.logits.flatten(0, 1) / 2, -1),
            reduction="batchmean",
        )
        states = [x.hidden_states[-1].flatten(0, 1) for x in (output, expected)]
        cosine = functional.cosine_embedding_loss(*states, torch.ones(len(states[0])))
        return 5 * soft_targets + 2 * output.loss + cosine

    return loss


if __name__ == "__main__":
    main()
