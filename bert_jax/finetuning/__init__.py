"""A run of fine-tuning on a task, from its config to its results."""
