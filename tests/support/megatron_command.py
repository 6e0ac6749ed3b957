"""Is `nemo-vfm` with Megatron-Core's stand-ins for CUDA: `python -m tests.support.megatron_command run ...`."""

import sys

from nemo_vfm.cli.main import main
from tests.support.cpu_megatron import megatron_on_cpu

if __name__ == "__main__":
    with megatron_on_cpu():
        status = main(sys.argv[1:])
    sys.exit(status)
