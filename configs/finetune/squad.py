"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): `squad.py`, `squad.py:2.0`.

Source: Devlin et al. 2019, sections 4.2 and 4.3: learning rate 5e-5, with batches of 32 and 3
epochs for 1.1, and batches of 48 and 2 epochs for 2.0.

    python -m bert_jax.finetune --config=configs/finetune/squad.py \\
        --config.data.input=FOLDER --config.init_from=PATH --workdir=DIR

FOLDER contains train-v1.1.json and dev-v1.1.json, or the same files of v2.0.
Hardware: one GPU of 16 GB or more, or one TPU chip. With less memory, use
--config.train.batch_size=12 and --config.schedule.peak_learning_rate=3e-5.
Expected: with BERT-base, the paper's table 2 (dev 1.1: EM 80.8, F1 88.5); not reproduced here.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = "1.1"):
    check_argument(arg, ("1.1", "2.0"))
    c = finetune_config("squad")
    c.data.max_seq_length = 384
    c.schedule.peak_learning_rate = 5e-5
    c.squad.version = arg
    if arg == "2.0":
        c.train.batch_size = 48
        c.train.num_epochs = 2.0
    return c
