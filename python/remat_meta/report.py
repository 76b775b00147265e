# SPDX-License-Identifier: BSD-3-Clause

"""python -m remat_meta.report STEP.rec [OTHER.rec] -o STEP.html: writes recordings as a page for browsers."""

import argparse
import sys

from ._record import write_report

__all__ = ["main", "write_report"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m remat_meta.report", description="Recordings as a page for browsers.")
    parser.add_argument("recording", help="what remat_meta.record() has written")
    parser.add_argument("second", nargs="?", help="another, to see beside it")
    parser.add_argument("-o", "--output", required=True, help="the page, HTML")
    given = parser.parse_args(arguments)
    recordings = [given.recording] + ([given.second] if given.second else [])
    try:
        write_report(*recordings, page=given.output)
    except ValueError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
