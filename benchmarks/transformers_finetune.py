"""Fine-tunes transformers' PyTorch BERT on rows of text; run by finetune_against_transformers.py.

This needs torch and transformers, but not bert_jax. It reads DATA/train.jsonl and
DATA/validation.jsonl (`text`, `text_b`, `label`) and writes the logits of the validation rows.
"""

import argparse
import json
import random
import time

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num_labels", type=int, required=True, help="1 for regression")
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--learning_rate", type=float, required=True)
    parser.add_argument("--max_seq_length", type=int, required=True)
    args = parser.parse_args()
    import torch
    import transformers

    started = time.perf_counter()
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.BertForSequenceClassification.from_pretrained(
        args.model, num_labels=args.num_labels
    )
    rows, validation = (read(f"{args.data}/{split}.jsonl") for split in ("train", "validation"))
    num_steps = int(len(rows) * args.epochs / args.batch_size)
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_other = name.endswith("bias") or "LayerNorm" in name
        (others if is_other else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, eps=1e-6)
    warmup = int(0.1 * num_steps)
    # As in google-research/bert, the decay counts from step 0, so the rate drops after the warm-up.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warmup if step < warmup else 1 - step / num_steps
    )

    def encode(chosen):
        pairs = [row["text_b"] for row in chosen]
        return tokenizer(
            [row["text"] for row in chosen],
            pairs if pairs[0] is not None else None,
            padding=True,
            truncation="longest_first",
            max_length=args.max_seq_length,
            return_tensors="pt",
        )

    model.train()
    label_type = torch.long if args.num_labels > 1 else torch.float
    order: list[int] = []
    generator = random.Random(args.seed)
    for step in range(num_steps):
        while len(order) < args.batch_size:
            # As in bert_jax, a batch may hold the last rows of an epoch and the first of the next.
            order += generator.sample(range(len(rows)), len(rows))
        chosen, order = [rows[i] for i in order[: args.batch_size]], order[args.batch_size :]
        labels = torch.tensor([row["label"] for row in chosen], dtype=label_type)
        loss = model(**encode(chosen), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step + 1} of {num_steps}: loss {loss.item():.3f}, {seconds:.0f} s")

    model.eval()
    logits = []
    with torch.inference_mode():
        for first in range(0, len(validation), 64):
            logits.append(model(**encode(validation[first : first + 64])).logits.numpy())
    np.save(args.output, np.concatenate(logits))


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    main()
