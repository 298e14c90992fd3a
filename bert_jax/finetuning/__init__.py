"""Fine-tuning: the setup of a task, single runs, sweeps, and all of GLUE."""
