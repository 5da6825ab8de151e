#!/usr/bin/env bash
# Prints the path of a Chromium (or Chrome, or Edge) in which the HTML report can be looked at.
#
# A name on PATH proves nothing: Ubuntu's chromium-browser is a stub that asks for a snap. So every candidate is run, and the first that
# says its version wins. CHROMIUM=/path overrules the search.
set -u

try() {
    local path
    path=$(command -v "$1" 2>/dev/null) || return 1
    timeout 20 "$path" --version >/dev/null 2>&1 </dev/null && echo "$path"
}

candidates() {
    printf '%s\n' chromium chromium-browser chromium-headless-shell google-chrome google-chrome-stable microsoft-edge
    printf '%s\n' "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" /Applications/Chromium.app/Contents/MacOS/Chromium
    # What `playwright install chromium` leaves, the newest first.
    printf '%s\n' "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}"/chromium*/chrome-linux*/{chrome,headless_shell} | sort -rV
}

if [[ -n ${CHROMIUM:-} ]]; then
    try "$CHROMIUM" && exit 0
    echo "find_chromium: CHROMIUM=$CHROMIUM is no browser that starts" >&2
    exit 1
fi

while IFS= read -r candidate; do
    try "$candidate" && exit 0
done < <(candidates)

{
    echo "find_chromium: no Chromium that starts. Tried by running them:"
    candidates | sed 's/^/    /'
    echo "Install one (Debian: apt-get install chromium), or name one: CHROMIUM=/path/to/chromium"
} >&2
exit 1
