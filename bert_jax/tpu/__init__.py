"""Compiles train steps for TPU slices and estimates their speed, without a TPU.

This is the command compile_check. `check.py` has its modes: `topologies.py` describes the devices
of a slice, `compilation.py` compiles a step for them, `hlo.py` reads the costs from the program,
`estimate.py` turns them into times, and `results.py` prints these.
"""
