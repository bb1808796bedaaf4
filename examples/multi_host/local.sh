#!/bin/bash
# Runs train.py as several processes of this machine, as if each were a host:
#   ./local.sh 2 --steps 40
# PORT is a free port of this machine, PYTHON the Python to use. SIGTERM and Ctrl-C let all processes save and stop.
set -u

processes=$1
shift
export JAX_COORDINATOR_ADDRESS=127.0.0.1:${PORT:-9876} JAX_NUM_PROCESSES=$processes

pids=()
for ((process = 0; process < processes; process++)); do
  JAX_PROCESS_ID=$process "${PYTHON:-python}" "$(dirname "$0")/train.py" "$@" &
  pids+=($!)
done
stopping=
trap 'stopping=1; kill -TERM "${pids[@]}"' INT TERM

status=0
for pid in "${pids[@]}"; do
  code=0
  wait "$pid" || code=$?
  if [ $code -gt 128 ] && [ -n "$stopping" ]; then # a signal has ended `wait`, not the process
    stopping= code=0
    wait "$pid" || code=$?
  fi
  [ $code -eq 0 ] || status=$code
done
exit $status
