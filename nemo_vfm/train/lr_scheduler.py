"""Shows the learning rates of a training as one of torch's schedulers."""

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler


class ShownRates(LRScheduler):
    """The rates of the coming step, for whoever asks a scheduler; the training sets them, and nothing else does."""

    def get_lr(self) -> list[float | Tensor]:
        """One for each group of parameters."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        """Look at them again."""
        self._last_lr = self.get_lr()
