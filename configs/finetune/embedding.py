"""Sentence embeddings for retrieval and similarity: `embedding.py:RECIPE`.

RECIPE is pairs, sts, nli, simcse or e5. The files are TSV, CSV, JSON lines, Parquet or Arrow with
named columns:

    pairs   anchor and positive, and any negative or negative_1, negative_2, ...
    sts     sentence1, sentence2 and score
    nli     anchor, positive (entailed) and negative (contradicted)
    simcse  anchor alone; config.embedding.sts or .retrieval is needed for validation
    e5      as pairs, with the prompts of E5

Sources: pairs: all-MiniLM and MultipleNegativesRankingLoss (Reimers and Gurevych 2019), with their
rate of 2e-5; the default of sentence-transformers is 5e-5. sts, nli and simcse: the examples
training_stsbenchmark.py, training_nli_v2.py and the unsupervised SimCSE of sentence-transformers.
e5: Wang et al. 2022, section 4.2, without their cross-encoder.

    python -m bert_jax.finetune --config=configs/finetune/embedding.py \\
        --config.data.input=train=pairs.jsonl,validation=dev.jsonl \\
        --config.init_from=PATH --workdir=DIR

Negatives are all other documents of the batch, on all devices. Larger batches are better; if one
does not fit, config.train.gradient_accumulation_steps divides it into chunks with the same result.
Hardware: a laptop for a small model and some thousand pairs; a TPU slice for millions.
Expected: depends on the data.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = "pairs"):
    check_argument(arg, ("pairs", "sts", "nli", "simcse", "e5"))
    c = finetune_config("embedding")
    c.train.batch_size = 64
    c.train.num_epochs = 1.0
    c.data.max_seq_length = 256
    c.schedule.peak_learning_rate = 2e-5
    # AdamW of sentence-transformers.
    c.schedule.shape = "linear_after_warmup"
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.optimizer.weight_decay = 0.0
    if arg == "sts":
        c.embedding.loss = "cosent"
        c.embedding.anchor_column = "sentence1"
        c.embedding.positive_column = "sentence2"
        c.embedding.label_column = "score"
        c.train.batch_size = 16
        c.train.num_epochs = 4.0
        c.data.max_seq_length = 128
    elif arg == "nli":
        c.train.batch_size = 128
        c.data.max_seq_length = 75
        c.schedule.peak_learning_rate = 5e-5
    elif arg == "simcse":
        c.embedding.positive_column = ""
        c.train.batch_size = 128
        c.data.max_seq_length = 32
        c.schedule.peak_learning_rate = 5e-5
        c.eval.every_steps = 125
    elif arg == "e5":
        c.embedding.scale = 100.0
        c.embedding.query_prompt = "query: "
        c.embedding.document_prompt = "passage: "
        c.train.batch_size = 256
        c.train.num_epochs = 3.0
        c.data.max_seq_length = 192
        c.schedule.warmup_steps = 400.0
    return c
