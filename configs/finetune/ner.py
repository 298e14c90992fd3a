"""Named entities in CoNLL's format: one word per line, with its tag in the last column.

Source: Devlin et al. 2019, section 5.3 and appendix A.3, for the recipe: batches of 16 or 32, a
learning rate of 5e-5, 3e-5 or 2e-5, and 2 to 4 epochs. Cased models find more names.

    python -m bert_jax.finetune --config=configs/finetune/ner.py \\
        --config.data.input=FOLDER --config.init_from=PATH --workdir=DIR

FOLDER contains train.conll, dev.conll and test.conll (or .txt, .jsonl, ...).
Hardware: one GPU or one TPU chip. A laptop is enough for a small model and a few thousand
sentences.
Expected: with BERT-base on CoNLL-2003, the paper's table 7 (dev F1 96.4, with the document as
context, which is not implemented); not reproduced here.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = ""):
    check_argument(arg)
    c = finetune_config("ner")
    c.schedule.peak_learning_rate = 5e-5
    return c
