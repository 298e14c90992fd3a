"""What all runs share: `engine.run_to_end` is a run from top to bottom, for any `loop.Run`.

`loop.py` takes the steps, `step.py` is one of them, and `trainer.py` compiles it for a model, its
objective and its mesh. `recorder.py` reads the metrics of steps and `metrics.py` writes them.
`workdir.py` has the names of a work directory's files, and `start.py` decides whether a run may
start in one.
"""
