"""Rerankers (cross-encoders), from queries with candidates: `rerank.py[:pairs, :lists, :distill]`.

pairs: each document alone, with binary cross-entropy; a file has positives and negatives, or pairs
with a label. lists: the documents of a query together, also with grades, with LambdaLoss. distill:
the differences between the scores of a teacher, with MarginMSE.

Source: the cross-encoders of sentence-transformers for GooAQ (training_gooaq_bce.py) and MS MARCO:
64 pairs a batch at 2e-5, 16 lists at 2e-5, 16 triples at 8e-6. A batch here has 16 queries with all
their candidates; of pairs with a label, take config.train.batch_size=64.

    python -m bert_jax.finetune --config=configs/finetune/rerank.py \\
        --config.data.input=train=mined.jsonl,validation=dev.jsonl \\
        --config.init_from=PATH --workdir=DIR

Hardware: a laptop for a small model and some thousand queries; a GPU or a TPU slice for millions.
Expected: depends on the data.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = "pairs"):
    check_argument(arg, ("pairs", "lists", "distill"))
    c = finetune_config("rerank")
    c.train.batch_size = 16
    c.train.num_epochs = 1.0
    c.data.max_seq_length = 256
    c.schedule.peak_learning_rate = 2e-5
    # AdamW of sentence-transformers.
    c.schedule.shape = "linear_after_warmup"
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.optimizer.weight_decay = 0.0
    if arg == "lists":
        c.rerank.loss = "lambda"
    elif arg == "distill":
        c.rerank.loss = "margin_mse"
        c.schedule.peak_learning_rate = 8e-6
    return c
