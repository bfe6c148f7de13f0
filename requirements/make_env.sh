#!/usr/bin/env bash
# Brings .venv/<name> up to date: make_env.sh <name> <major.minor>
#
# .venv/<name>.stamp holds the hash of the lock and of the projects installed in
# editable mode, and where they lie; while it matches there is nothing to do. It is removed
# before the first change and written after the last, and .venv/<name>.partial
# stands in between: after an interruption the environment is made afresh.
set -euo pipefail

name=$1
version=$2
cd "$(dirname "$0")/.."

env=.venv/$name
lock=requirements/$name.lock
projects=(core/ integrations/*/)

mkdir -p .venv
exec 9>".venv/$name.mutex"
flock 9

wanted=$({ pwd && cat "$lock" "${projects[@]/%/pyproject.toml}"; } | sha256sum | cut -d' ' -f1)
if [ -x "$env/bin/python" ] && [ "$(cat "$env.stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

is_usable() {
  "$1" -c "import ensurepip, sys, venv
sys.exit('%d.%d' % sys.version_info[:2] != '$version')" >/dev/null 2>&1
}

# A pyenv shim can be on PATH and still fail to run, so each candidate is tried.
find_python() {
  local override=PYTHON${version/./} pyenv=${PYENV_ROOT:-$HOME/.pyenv} candidate
  local candidates=("python$version" python3 "/usr/bin/python$version"
    "/usr/local/bin/python$version" "$pyenv"/versions/"$version".*/"bin/python$version")
  if [ -n "${!override:-}" ]; then
    candidates=("${!override}")
  fi
  for candidate in "${candidates[@]}"; do
    if is_usable "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  {
    echo "make: Python $version with the venv module is needed for $env; none of these is one:"
    printf '  %s\n' "${candidates[@]}"
    echo "Install it, or name it: make $override=/path/to/python$version ..."
  } >&2
  return 1
}

if [ -e "$env.partial" ] || ! is_usable "$env/bin/python"; then
  python=$(find_python)
  touch "$env.partial"
  echo "make: creating $env with $python" >&2
  "$python" -m venv --clear "$env"
fi
touch "$env.partial"
rm -f "$env.stamp"

install() {
  "$env/bin/python" -m pip -qq --no-input --disable-pip-version-check install "$@"
}
echo "make: installing $lock into $env" >&2
install -r "$lock"
install --no-deps --no-build-isolation "${projects[@]/#/--editable=}"
"$env/bin/python" -m pip check

echo "$wanted" >"$env.stamp"
rm -f "$env.partial"
