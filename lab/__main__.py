"""`python -m lab COMMAND`, in the root of a checkout."""

from lab.commands import app
from rksp.cli.app import main

if __name__ == "__main__":
    main(program=app, name="python -m lab")
