#!/bin/bash
# Makes a slice of Cloud TPUs, runs train.py on all of its hosts, and deletes it:
#   PROJECT=... ZONE=us-west4-a SHARE=10.0.0.2:/runs ./tpu.sh --steps 1000
# JAX finds the other hosts by itself. SHARE is a file system that all hosts mount, such as one of Filestore.
set -eu

name=${NAME:-train}
type=${TYPE:-v5litepod-16}
version=${VERSION:-v2-alpha-tpuv5-lite}
options=(--project="$PROJECT" --zone="$ZONE" --quiet)
folder=$(cd "$(dirname "$0")" && pwd)

on_all_hosts() {
  gcloud compute tpus tpu-vm ssh "$name" "${options[@]}" --worker=all --command="$1"
}

package=$(mktemp -d)/axonym.tar.gz
repository=$(git -C "$folder" rev-parse --show-toplevel)
git -C "$repository" archive --prefix=axonym/ --output="$package" HEAD

gcloud compute tpus tpu-vm create "$name" "${options[@]}" --accelerator-type="$type" --version="$version"
trap 'gcloud compute tpus tpu-vm delete "$name" "${options[@]}"' EXIT

gcloud compute tpus tpu-vm scp "$package" "$folder/train.py" "$name:" "${options[@]}" --worker=all
on_all_hosts "pip install './axonym.tar.gz[examples]' 'jax[tpu]'"
on_all_hosts "sudo apt-get install -y nfs-common && sudo mkdir -p /shared && sudo mount $SHARE /shared"
on_all_hosts "python3 train.py --out /shared/multi_host $(printf '%q ' "$@")"
