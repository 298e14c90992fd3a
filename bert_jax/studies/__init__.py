"""Several runs, one after another, and compared: of a study, of a sweep, and on all of GLUE."""
