"""Puts a secret in every place where a careless component might leak it."""

import base64
import json
import logging
import os
import sys
import threading
import urllib.parse
import warnings
from typing import Literal

from nemo_vfm.core import log
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.train.state.train_state import TrainState


class Holder:
    """Shows what it holds."""

    def __init__(self, *, secret: str, refuse: bool = False) -> None:
        if refuse:
            raise ValueError(f"{secret} is not a number")
        self.secret = secret

    def __repr__(self) -> str:
        return f"Holder({self.secret!r})"


class Leak:
    """A job that gives its secret away in one way."""

    def __init__(self, *, secret: str, how: str, count: int = 0, holder: Holder | None = None) -> None:
        self.secret, self.how, self.holder = secret, how, holder

    def run(self, run: Run) -> Outcome:
        return getattr(self, self.how)() or Outcome("done")

    def log(self) -> None:
        log.info(f"logging in with {self.secret}")
        for length in range(40, 64, 3):  # across the width of a terminal, cut at any letter
            log.warn("x" * length + self.secret)
        log.logger().error("the key is %s", self.secret)

    def log_traceback(self) -> None:
        try:
            raise KeyError(self.secret)
        except KeyError:
            log.logger().exception("it failed")

    def other_logger(self) -> None:
        logging.getLogger("somebody.else").warning("using %s", self.secret)

    def warning(self) -> None:
        warnings.warn(f"{self.secret} will expire", stacklevel=1)

    def prints(self) -> None:
        sys.stdout.write(f"{self.secret}\n")
        sys.stderr.write(f"{self.secret}\n")

    def bar(self) -> None:
        with log.bar(self.secret[:40], 2) as bar:
            bar.advance(1, self.secret)
        with log.bar(self.secret, 2) as bar:
            bar.advance(1, f"for {self.secret}")

    def raises(self) -> None:
        raise RuntimeError(f"{self.secret} was refused")

    def raises_ours(self) -> None:
        raise UserError(f"{self.secret} was refused")

    def cause(self) -> None:
        try:
            raise ValueError(self.secret)
        except ValueError as error:
            raise RuntimeError("no luck") from error

    def thread(self) -> None:
        thread = threading.Thread(target=self.raises)
        thread.start()
        thread.join()

    def shows(self) -> None:
        log.info(f"{self.holder} {vars(self)}")

    def environment(self) -> None:
        log.info(f"{dict(os.environ)}")
        raise RuntimeError(f"the child could not start with {os.environ}")

    def encoded(self) -> None:
        word = self.secret
        sys.stderr.write(f"https://x.org/?k={urllib.parse.quote(word)} {urllib.parse.quote_plus(word)}\n")
        sys.stderr.write(f"{json.dumps({'k': word})} {json.dumps(json.dumps(word))} {word!r} {[word]}\n")
        for user in ("", "a:", "ab:", "api:"):
            sys.stderr.write(base64.b64encode(f"{user}{word}".encode()).decode() + "\n")

    def outcome(self) -> Outcome:
        return Outcome(f"logged in as {self.secret}", {"steps": 1.0, f"loss/{self.secret}": 2.0})


class LeakyCallback:
    """Calls a metric after its secret."""

    def __init__(self, *, secret: str, where: Literal["metric"] = "metric") -> None:
        self.secret = secret

    def on_step(self, fit: TrainState) -> None:
        fit.metrics[f"loss/{self.secret}"] = 1.0
