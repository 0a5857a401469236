"""``python3 -m sandbox_operator``."""

import sys

from sandbox_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
