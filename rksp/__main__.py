"""Run the command line: `python -m rksp` is the same as `rksp`."""

from rksp.cli import main

if __name__ == "__main__":
    main()
