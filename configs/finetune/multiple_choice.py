"""Multiple choice: SWAG (Zellers et al. 2018), CommonsenseQA (Talmor et al. 2019).

Source: Devlin et al. 2019, section 4.4: batches of 16, 3 epochs, learning rate 2e-5.

    python -m bert_jax.finetune --config=configs/finetune/multiple_choice.py \\
        --config.data.input=FOLDER --config.init_from=PATH --workdir=DIR

FOLDER contains SWAG's train.csv, val.csv and test.csv, or CommonsenseQA's train_rand_split.jsonl,
dev_rand_split.jsonl and test_rand_split_no_answers.jsonl, or other files in one of these formats.
Each choice becomes one sequence.
Hardware: one GPU or one TPU chip.
Expected: with BERT-base on SWAG, the paper's table 4 (dev accuracy 81.6); not reproduced here.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = ""):
    check_argument(arg)
    c = finetune_config("multiple_choice")
    c.train.batch_size = 16
    c.schedule.peak_learning_rate = 2e-5
    return c
