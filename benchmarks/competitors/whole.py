"""`python ARGUMENTS`, until all that it has started has ended: their processor time is then this one's.  whole.py ARGUMENTS"""

import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36  # prctl(2): the fork server, which outlives its program by a moment, becomes a child of this process


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    code = subprocess.run([sys.executable, *sys.argv[1:]], check=False).returncode
    try:
        while True:
            os.wait()
    except ChildProcessError:
        sys.exit(code)


if __name__ == "__main__":
    main()
