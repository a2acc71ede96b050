"""`python -m saturnmq.cli` runs the command line."""

import sys

from saturnmq.cli import main

if __name__ == "__main__":
    sys.exit(main())
