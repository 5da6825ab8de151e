#!/usr/bin/env bash
# Prints the path of a Python that can make a virtual environment, of the first of the given versions that there is:
# `tools/find_python.sh 3.11 3.12`.
#
# A name on PATH proves nothing: a version manager's shim exists and fails when another version is selected. So every candidate is
# run, and the first one that starts, is of that version and has `venv` and `ensurepip` wins. PYTHON312=/path (PYTHON311, …) overrules
# the search for that version.
set -u

(($#)) || { echo "usage: tools/find_python.sh MAJOR.MINOR..." >&2; exit 1; }

try() {
    "$1" - "$version" 2>/dev/null <<'PY'
import ensurepip, sys, venv
if "%d.%d" % sys.version_info[:2] != sys.argv[1]:
    sys.exit(1)
print(sys.executable)
PY
}

candidates() {
    local root
    echo "python$version"
    root=${PYENV_ROOT:-$(pyenv root 2>/dev/null || echo "$HOME/.pyenv")}
    printf '%s\n' "$root"/versions/"$version"*/bin/python | sort -rV
    if command -v uv >/dev/null; then
        UV_PYTHON_DOWNLOADS=never uv python find --no-project "$version" 2>/dev/null
    fi
    printf '%s\n' {/usr,/usr/local,/opt/homebrew,/opt/local}/bin/python"$version"
    printf '%s\n' python3 python
}

for version in "$@"; do
    override="PYTHON${version//./}"
    if [[ -n ${!override:-} ]]; then
        try "${!override}" && exit 0
        echo "find_python: $override=${!override} is not a Python $version with venv and ensurepip" >&2
        exit 1
    fi
    while IFS= read -r candidate; do
        try "$candidate" && exit 0
    done < <(candidates)
done

{
    echo "find_python: no working Python $(IFS=/; echo "$*" | sed 's|/|, |g'). Tried by running them:"
    for version in "$@"; do candidates; done | awk '!seen[$0]++' | sed 's/^/    /'
    echo "Install Python $1 (with venv and ensurepip), or name one: make setup PYTHON${1//./}=/path/to/python$1"
} >&2
exit 1
