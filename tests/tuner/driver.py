"""The command line with a stub GPU: `python -m tests.tuner.driver sweep ...`."""

from tests import stubs
from tuner.cli import main

if __name__ == "__main__":
    stubs.install()
    main()
