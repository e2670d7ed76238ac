# Sourced by scripts/serve and scripts/test: makes the virtual environment and fetches the small model.
# Callers have set ROOT (the repository) and have `set -euo pipefail` in force.

PYTHON="${PYTHON:-python3}"
VENV="$ROOT/.venv"

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# is_stamped FILE: does it say that what is `wanted` is installed?
is_stamped() {
    [ -f "$1" ] && [ "$(cat "$1")" = "$wanted" ]
}

# make_environment EXTRAS: .venv with the pinned requirements; nothing to do if it is up to date.
make_environment() {
    local extras="$1" stamp wanted
    command -v "$PYTHON" >/dev/null || fail "$PYTHON not found: install Python 3.11 or newer, or set PYTHON to it"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$PYTHON" --version) is too old: install Python 3.11 or newer, or set PYTHON to it"
    # Two starts at once must not install into one environment at the same time.
    exec 9>"$ROOT/.venv.lock"
    flock 9
    if [ ! -x "$VENV/bin/python" ]; then
        echo "Making the virtual environment $VENV"
        "$PYTHON" -m venv "$VENV" || fail "could not make $VENV: is the venv module of $PYTHON installed?"
    fi
    stamp="$VENV/.installed-${extras:-base}"
    wanted="$(cat "$ROOT/pyproject.toml" "$ROOT/requirements/constraints.txt" | sha256sum | cut -c1-64) $ROOT"
    # An environment for the tests will do for serving too.
    if ! is_stamped "$stamp" && ! { [ -z "$extras" ] && is_stamped "$VENV/.installed-test"; }; then
        echo "Installing the requirements (some minutes the first time)"
        "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar on \
            -c "$ROOT/requirements/constraints.txt" -e "$ROOT${extras:+[$extras]}" ||
            fail "could not install the requirements: is there a network, and does pip reach its package index? (pip's own words are above)"
        echo "$wanted" >"$stamp"
    fi
    flock -u 9
    exec 9>&-
}

# fetch_model: prints the path of the small model's file, fetching it if it is not there.
fetch_model() {
    "$VENV/bin/python" "$ROOT/scripts/fetch_model.py" || exit 1
}
