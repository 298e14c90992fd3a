"""The train step, the optimizer, the schedule, checkpoints and metrics."""
