"""`python -m holdfast`: the command, where its script is not on the PATH."""

import sys

from holdfast.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
