"""The train step and what keeps it going: optimizer, schedule, checkpoints, metrics."""
