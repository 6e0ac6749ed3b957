# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m nemo_vfm` in, the command line's exit status out."""

import sys

from nemo_vfm.cli.main import main

sys.exit(main())
