"""Times a training step of a PyTorch model of transformers; run by against_transformers.py.

This needs torch and transformers, but not bert_jax. The step is that of bert_jax.benchmark: all
losses of the class, dropout, global-norm clipping and AdamW.
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
    parser.add_argument("--model_class", required=True, help="BertForPreTraining, for example")
    parser.add_argument("--model", required=True, help="the keys of its config.json, as JSON")
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--predictions", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    config = transformers.AutoConfig.for_model(**json.loads(args.model))
    model = getattr(transformers, args.model_class)(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    shape = (args.batch_size, args.length)
    ids = torch.randint(config.vocab_size, shape)
    # Padding would not count as a position in some families.
    ids = torch.where(ids == config.pad_token_id, config.pad_token_id + 1, ids)
    # Only the masked positions have a label; -100 means none.
    labels = torch.full(shape, -100)
    for row in range(args.batch_size):
        positions = torch.randperm(args.length)[: args.predictions]
        labels[row, positions] = ids[row, positions]
    inputs = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
    if getattr(config, "type_vocab_size", 1) > 1:
        segments = (torch.arange(args.length) >= args.length // 2).long()
        inputs["token_type_ids"] = segments.expand(shape)
    targets = {"labels": labels}
    if args.model_class == "BertForPreTraining":
        targets["next_sentence_label"] = torch.randint(2, (args.batch_size,))

    seconds = []
    for _ in range(WARMUP_STEPS + args.steps):
        started = time.perf_counter()
        output = model(**inputs, **targets)
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
