"""Studies: the runs that one config file lists, run one after another and compared."""
