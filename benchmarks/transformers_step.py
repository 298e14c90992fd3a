"""Times a training step of a PyTorch model of transformers; run by against_transformers.py.

This needs torch and transformers, but not bert_jax. Like the step of bert_jax.benchmark, this one
has all losses of the family, dropout, global-norm clipping and AdamW. SpanBERT's boundary objective
is left out, because transformers lacks it.
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from torch.nn import functional

WARMUP_STEPS = 3
IGNORED = -100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model_class", required=True, help="BertForPreTraining, for example")
    parser.add_argument("--model", required=True, help="the keys of its config.json, as JSON")
    parser.add_argument("--generator", help="keys of ELECTRA's generator")
    parser.add_argument("--teacher", help="keys of DistilBERT's teacher")
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--predictions", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    config = read_config(args.model)
    model = getattr(transformers, args.model_class)(config).train()
    if args.generator:
        loss = electra_loss(model, args.generator)
    elif args.teacher:
        loss = distillation_loss(model, args.teacher)
    else:

        def loss(**inputs):
            return model(**inputs).loss

    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
    batch = random_batch(config, args)
    seconds = []
    for _ in range(WARMUP_STEPS + args.steps):
        started = time.perf_counter()
        loss(**batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
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


def read_config(keys: str) -> transformers.PretrainedConfig:
    return transformers.AutoConfig.for_model(**json.loads(keys))


def random_batch(
    config: transformers.PretrainedConfig, args: argparse.Namespace
) -> dict[str, torch.Tensor]:
    shape = (args.batch_size, args.length)
    ids = torch.randint(config.vocab_size, shape)
    # Padding would not count as a position in some families.
    ids = torch.where(ids == config.pad_token_id, config.pad_token_id + 1, ids)
    labels = torch.full(shape, IGNORED)
    for row in range(args.batch_size):
        positions = torch.randperm(args.length)[: args.predictions]
        labels[row, positions] = ids[row, positions]
    batch = {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.long)}
    batch["labels"] = labels
    if getattr(config, "type_vocab_size", 1) > 1:
        segments = (torch.arange(args.length) >= args.length // 2).long()
        batch["token_type_ids"] = segments.expand(shape)
    second = {
        "BertForPreTraining": "next_sentence_label",
        "AlbertForPreTraining": "sentence_order_label",
    }
    if args.model_class in second:
        batch[second[args.model_class]] = torch.randint(2, (args.batch_size,))
    return batch


def electra_loss(discriminator, generator_keys: str):
    """Returns the loss of both parts; the generator becomes a part of `discriminator`."""
    generator = transformers.ElectraForMaskedLM(read_config(generator_keys)).train()
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


def distillation_loss(student, teacher_keys: str):
    """Returns the three losses of DistilBERT at temperature 2, over all positions."""
    teacher = transformers.AutoModelForMaskedLM.from_config(read_config(teacher_keys)).eval()

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
