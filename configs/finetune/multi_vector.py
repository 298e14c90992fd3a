"""Late interaction for retrieval (ColBERT): `multi_vector.py[:pairs, :distill]`.

A text gets a vector for each of its tokens. The score of a document is the sum, over the vectors of
the query, of the largest product with a vector of the document (MaxSim). Files are those of
embedding.py.

pairs: anchor and positive, with any negatives. distill: the scores of a teacher for a positive and
its negatives, with the divergence of their distributions.

Source: pairs: the multi-vector encoders of sentence-transformers (32 rows at 3e-5, warm-up 5 %);
distill: GTE-ModernColBERT and PyLate (16 rows at 3e-5, 3 epochs). The markers, 32 tokens a query,
180 a document, [MASK]s and the punctuation are those of PyLate (Khattab and Zaharia 2020;
Santhanam et al. 2022).

    python -m bert_jax.finetune --config=configs/finetune/multi_vector.py \\
        --config.data.input=train=mined.jsonl,validation=dev.jsonl \\
        --config.init_from=PATH --workdir=DIR

Hardware: a laptop for a small model and some thousand pairs; a GPU or a TPU slice for millions.
Expected: depends on the data.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = "pairs"):
    check_argument(arg, ("pairs", "distill"))
    c = finetune_config("embedding")
    c.embedding.kind = "multi_vector"
    c.embedding.scale = 1.0
    c.embedding.query_prompt = "[Q] "
    c.embedding.document_prompt = "[D] "
    c.train.batch_size = 32
    c.train.num_epochs = 1.0
    c.data.max_seq_length = 180
    c.schedule.peak_learning_rate = 3e-5
    c.schedule.warmup_steps = 0.05
    # AdamW of sentence-transformers.
    c.schedule.shape = "linear_after_warmup"
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.optimizer.weight_decay = 0.0
    if arg == "distill":
        c.embedding.loss = "kl"
        c.train.batch_size = 16
        c.train.num_epochs = 3.0
    return c
