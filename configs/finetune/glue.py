"""GLUE (Wang et al. 2019): `glue.py:TASK`.

TASK is cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli or ax.

Source: Devlin et al. 2019, section 4.1: batches of 32, 3 epochs, and whichever learning rate of
5e-5, 4e-5, 3e-5 and 2e-5 is best on the dev set (`--sweep`).

    python -m bert_jax.finetune --config=configs/finetune/glue.py:mrpc \\
        --config.data.input=glue_data/MRPC --config.init_from=PATH --workdir=DIR

`glue.py:all` (--config.data.input=glue_data) trains one task after another and prints the table.
`ax` trains on MNLI and predicts the diagnostic set, whose folder must be beside MNLI's.

Hardware: one GPU or one TPU chip. A laptop is enough for a small model and the small tasks (CoLA,
MRPC, STS-B, RTE, WNLI).
Expected: with BERT-base, the paper's table 1 (test: CoLA 52.1, SST-2 93.5, MRPC F1 88.9, STS-B
85.8, QQP F1 71.2, MNLI 84.6/83.4, QNLI 90.5, RTE 66.4); not reproduced here.
"""

from bert_jax.config import check_argument, finetune_config
from bert_jax.config.finetuning import ALL
from bert_jax.config.task_sections import GLUE_TASKS


def get_config(arg: str = "mrpc"):
    check_argument(arg, (*GLUE_TASKS, "ax", ALL))
    c = finetune_config(arg)
    if arg == "qqp":
        # Some rows of the training file lack a question.
        c.data.bad_rows = "skip"
    if arg == "ax":
        # The diagnostic set has only a test split.
        c.eval.predict = "test"
    return c
