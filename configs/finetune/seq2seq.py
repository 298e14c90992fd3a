"""Generating a text from a text with a BART: TSV, CSV or JSON lines with named columns.

Source: Lewis et al. 2020, section 5.3, and fairseq's examples/bart/README.summarization.md: rate
3e-5 after 500 of 20,000 steps of warm-up, label smoothing 0.1, clipping at a norm of 0.1.

    python -m bert_jax.finetune --config=configs/finetune/seq2seq.py \\
        --config.data.input=train=train.jsonl,validation=dev.jsonl \\
        --config.seq2seq.source_column=article --config.seq2seq.target_column=summary \\
        --config.init_from=BART --workdir=DIR

ROUGE needs the package rouge-score: pip install -e '.[rouge]'.
Hardware: one GPU of 24 GB or more, or one TPU chip, for BART-base. A laptop is enough for a small
model and a few thousand short rows.
Expected: depends on the data. The results have the ROUGE of the first sentences of the source
beside the model's.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = ""):
    check_argument(arg)
    c = finetune_config("seq2seq")
    c.data.max_seq_length = 1024
    c.optimizer.eps = 1e-8
    c.optimizer.bias_correction = True
    c.optimizer.decay_all = True
    c.optimizer.max_grad_norm = 0.1
    c.schedule.shape = "linear_after_warmup"
    c.schedule.warmup_steps = 0.025
    return c
