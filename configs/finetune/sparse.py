"""Sparse vectors for retrieval (SPLADE): `sparse.py[:pairs, :distill, :inference_free]`.

A text gets a weight for each token of the vocabulary, from the masked-LM head of a pre-trained
model, and FLOPS losses make most weights zero. Files are those of embedding.py.

pairs: anchor and positive, with any negatives. distill: the scores of a teacher for a positive and
its negatives, with MarginMSE. inference_free: as pairs, but a query has a trained weight for each
of its tokens and needs no encoder.

Source: the sparse encoders of sentence-transformers for Natural Questions and MS MARCO (Formal et
al. 2021 and 2022; Geng et al. 2024): 16 rows of 256 tokens at 2e-5, weights 5e-5 and 3e-5; distill
0.1 and 0.08; inference_free 0 and 3e-3, with a rate of 1e-3 for the weights of queries.

    python -m bert_jax.finetune --config=configs/finetune/sparse.py \\
        --config.data.input=train=mined.jsonl,validation=dev.jsonl \\
        --config.init_from=PATH --workdir=DIR

The right weights of the FLOPS losses depend on the loss and the vocabulary. The log and the scores
show how many dimensions are active; a few hundred are usual.

Hardware: a laptop for a small model and some thousand pairs; a GPU or a TPU slice for millions.
Expected: depends on the data.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = "pairs"):
    check_argument(arg, ("pairs", "distill", "inference_free"))
    c = finetune_config("embedding")
    c.embedding.kind = "sparse"
    c.embedding.scale = 1.0
    c.train.batch_size = 16
    c.train.num_epochs = 1.0
    c.data.max_seq_length = 256
    c.schedule.peak_learning_rate = 2e-5
    # AdamW of sentence-transformers.
    c.schedule.shape = "linear_after_warmup"
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.optimizer.weight_decay = 0.0
    if arg == "distill":
        c.embedding.loss = "margin_mse"
        c.embedding.query_flops = 0.1
        c.embedding.document_flops = 0.08
    elif arg == "inference_free":
        c.embedding.static_queries = True
        c.embedding.query_flops = 0.0
        c.embedding.document_flops = 3e-3
    return c
