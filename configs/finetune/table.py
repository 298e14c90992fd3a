"""Classification or regression on your own rows: TSV, CSV or JSON lines with named columns.

Source: Devlin et al. 2019, section 4.1, for the recipe.

    python -m bert_jax.finetune --config=configs/finetune/table.py \\
        --config.data.input=train=train.csv,validation=dev.csv \\
        --config.table.text_column=review --config.table.label_column=stars \\
        --config.init_from=PATH --workdir=DIR

Hardware: one GPU or one TPU chip. A laptop is enough for a small model and a few thousand rows.
Expected: depends on the data.
"""

from bert_jax.config import check_argument, finetune_config


def get_config(arg: str = ""):
    check_argument(arg)
    c = finetune_config("table")
    return c
