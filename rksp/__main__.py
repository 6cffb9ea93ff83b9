"""`python -m rksp` is `rksp`."""

from rksp.cli import main

if __name__ == "__main__":
    main()
