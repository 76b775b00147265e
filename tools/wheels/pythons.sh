# SPDX-License-Identifier: BSD-3-Clause

# Sourced. Prints the interpreters of Python $1 (3.12) on PATH and in ~/.pyenv, one in a line.
interpreters_of() {
  local python
  for python in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
    # One of pyenv's on PATH may have no version behind it.
    if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.argv[1] != "%d.%d" % sys.version_info[:2])' "$1" 2>/dev/null; then
      echo "$python"
    fi
  done
}
