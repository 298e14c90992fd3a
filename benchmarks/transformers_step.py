"""Times a training step of transformers' PyTorch BERT; run by against_transformers.py.

This needs torch and transformers, but not bert_jax. The step is that of bert_jax.benchmark:
BertForPreTraining with both losses, dropout, global-norm clipping and AdamW.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

WARMUP_STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the keys of bert_config.json, as JSON")
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--predictions", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    config = transformers.BertConfig(**json.loads(args.model))
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    shape = (args.batch_size, args.length)
    ids = torch.randint(config.vocab_size, shape)
    # Only the masked positions have a label; -100 means none.
    labels = torch.full(shape, -100)
    for row in range(args.batch_size):
        positions = torch.randperm(args.length)[: args.predictions]
        labels[row, positions] = ids[row, positions]
    segments = (torch.arange(args.length) >= args.length // 2).long().expand(shape)

    seconds = []
    for _ in range(WARMUP_STEPS + args.steps):
        started = time.perf_counter()
        output = model(
            input_ids=ids,
            token_type_ids=segments,
            attention_mask=torch.ones(shape, dtype=torch.long),
            labels=labels,
            next_sentence_label=torch.randint(2, (args.batch_size,)),
        )
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds[WARMUP_STEPS:])
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(
        json.dumps(
            {
                "sequences_per_second": args.batch_size / median,
                "attention": config._attn_implementation,
                "versions": versions,
            }
        )
    )


if __name__ == "__main__":
    main()
