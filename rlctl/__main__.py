"""`python -m rlctl` is `rlctl`."""

from rlctl.cli.main import main

if __name__ == "__main__":
    main()
