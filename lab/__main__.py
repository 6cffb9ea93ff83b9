"""`python -m lab COMMAND`, in the root of a checkout."""

from lab.commands import main

if __name__ == "__main__":
    main()
