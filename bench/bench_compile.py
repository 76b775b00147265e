#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Combines checkpoints and torch.compile in every way, for remat and torch's checkpoint: the table of docs/how-to/compile.md.

  bench_compile.py [BACKEND ...]

Compares gradients and parameters after two steps with those of the same compiled code without a checkpoint: "bitwise", or
the largest difference over the largest absolute value of that tensor. "kept" are the bytes held between forward and backward,
in units of one block's input; "plain" is without a checkpoint. A dash means that torch has no equivalent.
"""

import logging
import pathlib
import sys

import torch
from peers import parser_of, print_heads, print_row

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"))

from compile_cells import BACKENDS, FLOAT, KEEPS, ROWS, WAYS, WIDTH, predicted_bytes, run_cell

HEADS = ("way", "backend", "kept is", "plain: kept", "remat: gradients", "kept", "predicted", "torch: gradients", "kept")


def units(kept):
    return f"{kept / (ROWS * WIDTH * FLOAT):.4g}"


def gradients(plain, cell):
    if cell.error:
        expected = cell.error.partition(": expected ")[2].partition(",")[0]
        return f"error: expected {expected}"
    pairs = list(zip(plain.tensors, cell.tensors, strict=True))
    if all(torch.equal(expected, got) for expected, got in pairs):
        return "bitwise"
    return f"{max(float((got - expected).abs().max() / expected.abs().max()) for expected, got in pairs):.1e}"


def row(way, backend, keep):
    plain, *cells = (run_cell(way, backend, keep, name) for name in ("plain", "remat", "torch"))
    shown = [("—", "—") if c is None else (gradients(plain, c), "—" if c.error else units(c.kept)) for c in cells]
    predicted = "—" if cells[0].error else units(predicted_bytes(way, backend, keep, plain.kept))
    return [way, backend, keep, units(plain.kept), *shown[0], predicted, *shown[1]]


def main():
    parser = parser_of(__doc__)
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=f"of {', '.join(BACKENDS)}")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    print_heads(HEADS)
    for way in WAYS:
        for backend in given.backends or BACKENDS:
            for keep in KEEPS:
                print_row(row(way, backend, keep))


if __name__ == "__main__":
    main()
