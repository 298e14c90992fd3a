#!/usr/bin/env bash
# Submits a training run as a JobSet to the current cluster of kubectl, with TPU slices of Google
# Kubernetes Engine. launch/README.md has the commands that create the cluster and the image.
#
#   export RUN=bert-large TPU=v5e TOPOLOGY=8x8 IMAGE=REGISTRY/bert_jax:1
#   export WORKDIR=gs://BUCKET/bert-large
#   launch/gke.sh --config=configs/large.py [more flags of bert_jax.main]
#
# SLICES=N takes N slices. DRY_RUN=1 only prints the JobSet.
set -euo pipefail

: "${RUN:?must be the name of the run}" "${IMAGE:?must be the container image}"
: "${TOPOLOGY:?must be the chips of a slice along each axis, such as 8x8}"
: "${WORKDIR:?must be gs://BUCKET/DIRECTORY}"
case ${TPU:-} in
  v4) accelerator=tpu-v4-podslice ;;
  v5e) accelerator=tpu-v5-lite-podslice ;;
  v5p) accelerator=tpu-v5p-slice ;;
  v6e) accelerator=tpu-v6e-slice ;;
  *)
    echo "error: TPU is '${TPU:-}'; it must be v4, v5e, v5p or v6e" >&2
    exit 2
    ;;
esac
# Each node has 4 chips.
nodes=$((${TOPOLOGY//x/ * } / 4))
# The arguments as strings of YAML, in which two quotes stand for one.
quote="'" args=""
for word in "--workdir=$WORKDIR" "$@"; do args+="'${word//$quote/$quote$quote}', "; done

jobset=$(
  cat <<END
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: $RUN
  annotations:
    # Each slice needs a node pool of its own.
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    # After a preemption, a lost host or a SIGTERM, all hosts restart from the checkpoint.
    maxRestarts: 100
    # Wait until the last old pod has released the TPU.
    restartStrategy: BlockingRecreate
    rules:
      - name: mistake
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: ${SLICES:-1}
      template:
        spec:
          completionMode: Indexed
          completions: $nodes
          parallelism: $nodes
          # A run needs all hosts: the JobSet restarts them together.
          backoffLimit: 0
          podFailurePolicy:
            rules:
              # The training exits with these after a mistake, which a restart would repeat.
              - action: FailJob
                onExitCodes:
                  containerName: train
                  operator: In
                  values: [1, 2]
          template:
            spec:
              restartPolicy: Never
              # Time to save after SIGTERM. Spot nodes get less.
              terminationGracePeriodSeconds: 300
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $accelerator
                cloud.google.com/gke-tpu-topology: $TOPOLOGY
              containers:
                - name: train
                  image: $IMAGE
                  command: [python, -m, bert_jax.main, --stopped_status=75]
                  args: [${args%, }]
                  resources:
                    requests:
                      google.com/tpu: 4
                    limits:
                      google.com/tpu: 4
END
)
if [[ -n ${DRY_RUN:-} ]]; then
  echo "$jobset"
else
  kubectl apply --filename=- <<<"$jobset"
fi
