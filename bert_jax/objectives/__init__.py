"""Objectives: what a model is trained to predict.

`terms/` has one file per pre-training term; `weighted.py` adds terms up; `task_losses.py` has
the losses of fine-tuning. Losses are sums over the batch they are given, not means: the caller
divides by the total weight of the *global* batch, and the parts of devices and microbatches add
up.
Dimension letters are those of `bert_jax.models`.
"""
