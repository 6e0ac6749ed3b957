"""Runs the command line as `python -m nemo_vfm`."""

import sys

from nemo_vfm.cli.main import main

sys.exit(main())
