"""The tasks of fine-tuning, from their data to their metrics."""
