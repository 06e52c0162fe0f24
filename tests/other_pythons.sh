#!/bin/sh
# Run the tests that need no server on each supported Python that is installed, except the one of .venv.
# Found are python3.N on PATH, those of uv and those of pyenv. Each gets an environment .venv-3.N. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."

own=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)

find_python() {
    for candidate in "$(command -v "python$1" || true)" "$(uv python find "$1" 2>/dev/null || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

for version in 3.11 3.12 3.13 3.14; do
    [ "$version" = "$own" ] && continue
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "Python $version is not installed here, so the tests are not run on it."
        continue
    fi
    environment=.venv-$version
    echo "Python $version: $python"
    "$environment/bin/python" -c "" 2>/dev/null || "$python" -m venv --clear "$environment"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable . --group dev
    "$environment/bin/python" -m pytest -q -m "not slow" tests/unit tests/conformance/test_sqlite.py tests/engine "$@"
done
