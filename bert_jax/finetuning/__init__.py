"""Behind `bert_jax.finetune`: its config, the start of a run, the run, and sweeps of runs."""
