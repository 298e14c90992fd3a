"""Times sentence features with transformers' PyTorch BERT; run by features_speed.py.

This needs torch and transformers, but not bert_jax. Batches of 32 are padded to their longest
sentence, in the order of the file or sorted by length. The features are the mean of
the last layer over the tokens.
"""

import argparse
import json
import time

import numpy as np

BATCH_SIZE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--order", required=True, choices=("file", "sorted"))
    parser.add_argument("--output", required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    started = time.perf_counter()
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    model = transformers.AutoModel.from_pretrained(args.model).eval()
    results = {}
    for phase in ("first", "warm"):
        cpu = time.process_time()
        with open(args.input, encoding="utf-8") as file:
            texts = [json.loads(line)["text"] for line in file]
        features, lengths, padded = run(torch, tokenizer, model, texts, args.order == "sorted")
        np.savez(args.output, features=features)
        results[phase] = len(texts) / (time.perf_counter() - started)
        results["cpu"] = len(texts) / (time.process_time() - cpu)
        started = time.perf_counter()
    results |= {
        "sentences": len(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "mean": sum(lengths) / len(lengths),
        "padding": 1 - sum(lengths) / padded,
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{model.config._attn_implementation} attention",
    }
    print(json.dumps(results))


def run(torch, tokenizer, model, texts, is_sorted):
    order = list(range(len(texts)))
    if is_sorted:
        order.sort(key=lambda i: len(texts[i]))
    features, lengths, padded = [None] * len(texts), [], 0
    with torch.inference_mode():
        for first in range(0, len(order), BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            batch = tokenizer(
                [texts[i] for i in chosen], padding=True, truncation=True, return_tensors="pt"
            )
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            means = (hidden * mask).sum(1) / mask.sum(1)
            for i, mean in zip(chosen, means.numpy(), strict=True):
                features[i] = mean
            lengths += mask.sum((1, 2)).tolist()
            padded += mask.numel()
    return np.stack(features), lengths, padded


if __name__ == "__main__":
    main()
