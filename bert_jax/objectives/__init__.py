"""Objectives: what a model is trained to predict.

`terms/` has the terms of pre-training, `weighted.py` their sum, and `task_losses.py` the losses of
fine-tuning. The loss of a part of a batch is divided by the total weight of the
*global* batch, so the losses of devices and microbatches add up. `bert_jax.models` explains the
dimension letters.
"""
