# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the command line as `python -m nemo_vfm`."""

import sys

from nemo_vfm.cli.main import main

sys.exit(main())
