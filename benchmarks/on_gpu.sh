#!/usr/bin/env bash
# What only a GPU can show, from the source tree, installing nothing, in nine minutes:
#
#   bash benchmarks/on_gpu.sh DIR [--seconds N] [--dry-run] [STAGE …]
#
# Stages, the most valuable first: versions calls captured kernels mlstm recurrent profiles device sanitize pallas
# pallas-times tune large conformance pallas-conformance; and, if named, all-times composed tuned suite pallas-suite.
# Each takes its share of the seconds that are left. DIR gets run.tgz (results and logs) and table.txt, both written
# again after every stage.
# A stage that fails does not end the run; the exit status is then 1, and 2 if the call is wrong.
#
# At home, `python -m benchmarks prove --from run.tgz` writes what the kernels have passed into the source tree: a file in
# benchmarks/results/gpu, and the proofs.json of torch_impl and jax_impl, by which a call that names no backend decides
# whether it takes a kernel.
#
# PYTHON names the interpreter (python3). build/compiled.tgz, if it is there, holds kernels that are compiled already
# (`python -m benchmarks bake build/compiled.tgz`), and wheels in build/wheels are added to what Python finds: packages to
# compare with. With --dry-run the stages run as far as a CPU can run them, small.

set -u -o pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [[ $# -lt 1 || $1 == -* ]]; then
    sed -n '2,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
mkdir -p -- "$1" || exit 2
directory=$(cd -- "$1" && pwd) || exit 2
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/gatespec-XXXXXX") || exit 2

# Kernels are compiled here, and what is measured stays in the run's own directory.
unset TRITON_INTERPRET GATESPEC_PALLAS_INTERPRET
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}:$work/site" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export GATESPEC_CACHE="$work/cache" TRITON_CACHE_DIR="$work/triton"
# What takes no name of a backend (scans, D̃, fwbw) takes its kernels too, proven or not.
export GATESPEC_UNPROVEN_KERNELS=1
# JAX would otherwise take three quarters of the GPU's memory from processes that measure at the same time.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
cd -- "$root" || exit 2
python=${PYTHON:-python3}
mkdir -p -- "$work/site"
version=$("$python" -c 'import sys; print("{}{}".format(*sys.version_info))')
for wheel in build/wheels/*-none-any.whl build/wheels/*-cp"$version"-*.whl; do
    [[ ! -e $wheel ]] || "$python" -m zipfile -e "$wheel" "$work/site" || echo "cannot unpack $wheel" >&2
done
if [[ -e build/compiled.tgz ]]; then
    "$python" -c 'import sys; from pathlib import Path; from benchmarks.gpu.baked import unpack
print(unpack(Path(sys.argv[1]), Path(sys.argv[2])), "kernels are compiled already")' build/compiled.tgz "$TRITON_CACHE_DIR"
fi
exec "$python" -m benchmarks.gpu.running "$directory" --work "$work" "$@"
