"""The paper's studies in small, and the families: `studies.py:NAME` or `studies.py:NAME,GLUE`.

    python -m bert_jax.compare --config=configs/studies.py:table6,glue_data --workdir=DIR

NAME is table5 (the pre-training tasks), table6 (the size of the model), table8 (what replaces the
chosen tokens), figure5 (a left-to-right model beside a masked one, by steps of pre-training) or
families (with equal FLOPs; see comparison.py). GLUE is the folder with the folders of the GLUE
tasks: with it, each model is fine-tuned on SST-2 with two seeds, and so are random weights with the
shape of the first model. A score that is not above theirs owes nothing to pre-training.

The two models of figure5 differ only in the prediction: neither has the next-sentence loss. Each is
trained once and keeps five checkpoints, and the fine-tunings begin with these.

A study lists its runs. Each is a line: its name, its command (main or finetune), and the flags of
the command; {study} is the directory of the study. `main` and `finetune` are flags of all runs with
this command. The first run prepares the text for the others.

Hardware: two CPU cores, for 10 to 40 minutes; families: an hour and a half.
Expected: the tables of docs/results.md. Reproduced with this code.
"""

import shlex

from ml_collections import ConfigDict

from bert_jax.config import check_argument

SIZES = ("L1_H64_A1", "L2_H64_A1", "L1_H128_A2", "L2_H128_A1", "L2_H128_A2", "L2_H192_A3")
# Percentages of the chosen tokens that become [MASK], are kept and become random.
REPLACEMENTS = ("100_0_0", "80_0_20", "80_20_0", "0_20_80", "0_0_100")
# Each name of a model with its config and what else differs.
STUDIES = {
    "table5": {
        "tiny": "--config=tiny",
        "no_nsp": "--config=ablations:no_nsp_tiny",
        "ltr": "--config=ablations:ltr_tiny",
    },
    "table6": {size: f"--config=sizes:tiny_{size}" for size in SIZES},
    "table8": {"80_10_10": "--config=tiny --config.train.num_steps=1500"}
    | {
        name: f"--config=ablations:mask_{name}_tiny --config.train.num_steps=1500"
        for name in REPLACEMENTS
    },
    "figure5": {
        name: f"--config=ablations:{ablation}_tiny --config.checkpoint.keep_every_steps=500"
        for name, ablation in (("masked", "no_nsp"), ("left_to_right", "ltr"))
    },
    "families": {
        name: f"--config=comparison:{name}"
        for name in ("bert", "roberta", "spanbert", "albert", "electra", "distilbert")
    },
}
# The checkpoints of a study that fine-tunes several of a run; otherwise the last is fine-tuned.
STEPS = {"figure5": (500, 1000, 1500, 2000, 2500)}
# All models are scored after their last step.
FINETUNING = (
    "--sweep --config=finetune/glue:sst2 --config.dtype=float32 "
    "'--config.sweep.learning_rates=(5e-4,)' '--config.sweep.batch_sizes=(32,)' "
    "'--config.sweep.seeds=(0, 1)' --config.eval.every_steps=1000000000 "
    "--config.train.num_epochs=0.1 --config.optimizer.bias_correction=True "
    "--config.data.max_seq_length=64"
)


def get_config(arg: str = "table6"):
    study, _, glue = arg.partition(",")
    check_argument(study, STUDIES)
    first, *_ = STUDIES[study]
    runs, finetunings = [], []
    for name, flags in STUDIES[study].items():
        if name != first:
            flags += f" --config.data.store={{study}}/{first}/data"
        if name == "distilbert":
            flags += f" --config.objective.teacher={{study}}/{first}"
        runs.append(f"{name} main {flags}")
        finetunings += [
            f"sst2_{name}_{step} finetune --config.init_from={{study}}/{name}/checkpoints/{step}"
            for step in STEPS.get(study, ())
        ] or [f"sst2_{name} finetune --config.init_from={{study}}/{name}"]
    random = f"--config.init_from={{study}}/{first} --config.from_scratch=True"
    finetunings.append(f"sst2_random_weights finetune {random}")
    if glue:
        task = f"{FINETUNING} --config.data.input={shlex.quote(glue)}/SST-2"
        runs += [f"{line} {task}" for line in finetunings]
    return ConfigDict({"runs": tuple(runs), "main": (), "finetune": ()}).lock()
