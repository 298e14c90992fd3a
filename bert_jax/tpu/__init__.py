"""Compiles train steps for TPU slices and estimates their speed, without a TPU."""
