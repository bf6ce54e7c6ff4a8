"""`python -m qassay`."""

from qassay.cli.main import main

if __name__ == "__main__":
    main()
