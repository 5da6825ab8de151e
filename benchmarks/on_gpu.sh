#!/usr/bin/env bash
# Everything that only a GPU can show, from the source tree, installing nothing:
#
#   bash benchmarks/on_gpu.sh DIR [STAGE …]
#
# Stages, ten minutes each at most, what decides first: versions kernels mlstm gru conformance large device composed tune
# tuned suite-mlstm suite-gru suite-slstm suite-rest pallas pallas-suite pallas-times forward proof. Who has an hour names the first
# seven. Results and logs go to DIR, a short table comes last. A stage that fails does not end the run; the exit status is
# then 1, and 2 if the call is wrong. Stages share Triton's cache of compiled kernels.
#
# The stage proof also follows any that are named. It writes what the kernels have passed into the source tree: a file in
# benchmarks/results/gpu, and the proofs.json of torch_impl and jax_impl, by which a call that names no backend decides
# whether it takes a kernel. `python -m benchmarks prove DIR` does the same elsewhere.
#
# PYTHON names the interpreter (python3). With --dry-run the stages run as far as a CPU can run them.

set -u -o pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [[ $# -lt 1 || $1 == -* ]]; then
    sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
mkdir -p -- "$1" || exit 2
directory=$(cd -- "$1" && pwd) || exit 2
shift

# Kernels are compiled here, and what is measured stays in DIR.
unset TRITON_INTERPRET GATESPEC_PALLAS_INTERPRET
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export GATESPEC_CACHE="$directory/cache"
# What takes no name of a backend (scans, D̃, fwbw) takes its kernels too, proven or not.
export GATESPEC_UNPROVEN_KERNELS=1
# JAX would otherwise take three quarters of the GPU's memory from processes that measure at the same time.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
cd -- "$root" || exit 2
exec "${PYTHON:-python3}" -m benchmarks.gpu.stages "$directory" "$@"
