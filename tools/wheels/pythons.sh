# SPDX-License-Identifier: BSD-3-Clause

# To be sourced. Prints the interpreters of Python $1 (such as 3.12) on PATH and in ~/.pyenv, one per line.
interpreters_of() {
  local python
  for python in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
    # A pyenv shim on PATH may have no version behind it.
    if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.argv[1] != "%d.%d" % sys.version_info[:2])' "$1" 2>/dev/null; then
      echo "$python"
    fi
  done
}
