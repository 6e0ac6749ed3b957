# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m launcher` in, the same as `vfm-launch` out."""

import sys

from launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
