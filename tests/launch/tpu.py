"""The flags of a training run on a TPU VM."""

WHERE = ("--project=my-project", "--zone=us-central1-a")
IDENTITY = ("--name=bert", *WHERE)
TRAIN = (*IDENTITY, "--accelerator=v5litepod-256", "--workdir=gs://bucket/run")
MAIN = ("--", "--config=configs/large.py", "--config.data.input=it's my $x & \\text/*.txt")
