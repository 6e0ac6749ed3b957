"""Defines the exceptions a user can meet, drawn as a tree; each says when it is raised.

NemoVfmError                 anything we raise on purpose
|-- UserError                the user can fix it: bad input, bad recipe, missing file  (exit code 2)
|   |-- MissingPackage       an optional package is not installed
|   |-- RunFolderError       the run folder holds another run, or cannot be used
|   `-- StoreError           an object store has no such bucket
|       |-- StoreDenied      ... or refuses us
|       `-- StoreUnreachable ... or does not answer
|-- DataError                media, shard or checkpoint bytes are not what they should be
|   `-- CorruptCheckpoint    a checkpoint does not match its manifest
|-- LostRank                 another rank of this run died or does not answer          (exit code 69)
|-- Preempted                a signal asked the run to end; its work so far is saved   (exit code 75)
|   `-- Interrupted          ... and the signal was a Ctrl-C                           (exit code 130)
|-- NextPhase                a phase is done, and the next needs other devices         (exit code 76)
`-- NothingKept              a job finished without a single output                    (exit code 3)
"""


class NemoVfmError(Exception):
    """Anything raised on purpose; its text is one or two sentences meant for the user."""

    exit_code = 1


class UserError(NemoVfmError, ValueError):
    """The user can fix this: it says what happened, what was expected and what to try."""

    exit_code = 2


class MissingPackage(UserError, ImportError):
    """An optional package is needed and not installed; the text holds the install command."""


class RunFolderError(UserError):
    """The run folder belongs to another recipe, is in use, or cannot be written."""


class FolderInUse(RunFolderError):
    """Another process holds the run folder."""


class StoreError(UserError):
    """An object store cannot be used as asked. No single sample is at fault: the run stops and can be resumed later."""


class StoreDenied(StoreError):
    """The store refuses us: credentials are missing, wrong or not enough."""


class StoreUnreachable(StoreError):
    """The store did not answer within the time and tries it was given."""


class DataError(NemoVfmError):
    """Bytes of a video, a shard or a checkpoint are damaged or not what they claim to be."""


class CorruptCheckpoint(DataError):
    """A checkpoint is incomplete or does not match the hashes in its manifest."""


class LostRank(NemoVfmError):
    """Another rank of this run died or does not answer. This rank has nothing to answer for and can only end."""

    exit_code = 69  # sysexits.h's "unavailable"


class Preempted(NemoVfmError):
    """A signal asked the run to end; what it did is saved, and the same command resumes."""

    exit_code = 75  # sysexits.h's "try again later"


class Interrupted(Preempted):
    """Ctrl-C asked the run to end; what it did is saved, and the same command resumes."""

    exit_code = 130  # of a program that Ctrl-C has ended, as shells say it


class NextPhase(NemoVfmError):
    """A phase of a training is done, and the next needs another number of devices; the same command continues."""

    exit_code = 76


class NothingKept(NemoVfmError):
    """A job ended without output: every input was dropped or failed. The text says why, by rule."""

    exit_code = 3
