"""Turns YAML of NeMo 1 and 2, DFM, AutoModel or LightningCLI into a recipe, and accounts for every key of the file.

Nothing that a file names is imported: a class is a text that is in a table or not. A new format is a new file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemo_vfm.cli.migrate.automodel import AUTOMODEL, FLOW_DEFAULTS
from nemo_vfm.cli.migrate.dfm_format import DFM
from nemo_vfm.cli.migrate.diffusion import diffusion
from nemo_vfm.cli.migrate.draft import Fate, Format, Kind, RecipeDraft, detect_format, kind_of
from nemo_vfm.cli.migrate.foreign_yaml import Key, Value, read_keys
from nemo_vfm.cli.migrate.language import language
from nemo_vfm.cli.migrate.lightning_cli import LIGHTNING_CLI, is_lightning_cli, lightning_cli
from nemo_vfm.cli.migrate.nemo1 import NEMO1
from nemo_vfm.cli.migrate.nemo2 import NEMO2
from nemo_vfm.cli.migrate.parallel import parallel
from nemo_vfm.cli.migrate.training import migrate_training, spare_norms
from nemo_vfm.core.errors import UserError

FORMATS = {form.name: form for form in (AUTOMODEL, DFM, NEMO2, NEMO1)}
_NAMES = (*FORMATS, LIGHTNING_CLI.name)
_FLOW_MODELS = ("flow_matching.", "model.num_joint_layers", "model.context_dim", "model.crossattn_emb_size")


@dataclass(frozen=True, slots=True)
class MigratedKey:
    """One key of the file and what became of it."""

    key: Key
    fate: Fate


@dataclass(frozen=True, slots=True)
class Migration:
    """A file's recipe and account."""

    form: Format  #: the format it was in
    draft: RecipeDraft
    entries: tuple[MigratedKey, ...]  #: every key of the file, in order, once

    def of(self, verdict: str) -> list[MigratedKey]:
        """The keys of one verdict."""
        return [entry for entry in self.entries if entry.fate.verdict == verdict]


def migrate(text: str, name: str, form: str = "", kind: Kind | None = None) -> Migration:
    """Read a file and decide what becomes of each of its keys.

    Its format and what it trains are told from its keys where `form` is empty or `kind` None.

    Raises:
        UserError: it cannot be read, or what it is cannot be told.
    """
    keys = read_keys(text, name)
    if form == LIGHTNING_CLI.name or (not form and is_lightning_cli(keys)):
        draft = lightning_cli(keys)
        return Migration(LIGHTNING_CLI, draft, tuple(MigratedKey(key, draft.fates[key.path]) for key in keys))
    chosen = _format(keys, name, form)
    trained = kind or kind_of(keys, chosen)
    if trained is None:
        text = (f"{name} is in {chosen.title}'s format, but nothing in it says that it trains a diffusion or a "
                "language model, which is what can be carried over; if it does, say which: --kind KIND.")  # fmt: skip
        if chosen is NEMO1:
            text += (" A YAML of nemo-toolkit 3.0 runs as it is: the job nemo_vfm.nemo.experiment.NeMoExperiment takes "
                     "it")  # fmt: skip
        raise UserError(text)
    # For each fact the key that says it: the one that the format names first, unless it says null.
    order = {path: place for place, path in enumerate(chosen.taken)}
    speakers: dict[str, Key] = {}
    for key in sorted(keys, key=lambda key: (key.value is None, order.get(key.path, 0))):
        fact = "" if key.secret else chosen.fact(key.path)
        if fact:
            speakers.setdefault(fact, key)
    facts: dict[str, Value] = dict(chosen.always)
    # Flow matching or EDM, where a format has both.
    flux = any("flux" in str(key.value).lower() for key in keys if key.path.endswith("_target_"))
    is_flow = flux or (chosen is DFM and any(key.path.startswith(_FLOW_MODELS) for key in keys))
    facts["objective"] = "flow" if is_flow else chosen.always.get("objective", "flow")
    if any(key.path.startswith("flow_matching.") for key in keys):  # in DFM's files, too
        facts |= FLOW_DEFAULTS
    facts |= {fact: key.value for fact, key in speakers.items()}
    draft = RecipeDraft(facts, trained)
    (diffusion if draft.kind == "diffusion" else language)(draft)
    parallel(draft)
    migrate_training(draft)
    if chosen is not AUTOMODEL:
        spare_norms(draft)
    return Migration(chosen, draft, tuple(_entries(keys, chosen, draft, speakers)))


def _format(keys: Sequence[Key], name: str, form: str) -> Format:
    if known := form or detect_format(keys):
        return FORMATS[known]
    if any(key.path == "_target_" and str(key.value).startswith("nemo_vfm.") for key in keys):
        raise UserError(f"{name} is already a nemo_vfm recipe; use `nemo-vfm copy` to copy it")
    if any(key.path.startswith("inference.") for key in keys):
        raise UserError(f"{name} samples from a trained model, and only trainings are migrated: start from "
                        f"`nemo-vfm copy diffusion/sample`")  # fmt: skip
    raise UserError(f"{name} matches none of the known formats, which are {', '.join(_NAMES)}; if it is one of "
                    f"them, pass --from FORMAT")  # fmt: skip


def _entries(keys: Sequence[Key], form: Format, draft: RecipeDraft, speakers: dict[str, Key]) -> Iterator[MigratedKey]:
    for key in keys:
        fact = "" if key.secret else form.fact(key.path)
        if not fact:
            yield MigratedKey(key, Fate("left", "", form.reason(key)))
        elif key.value != speakers[fact].value:
            yield MigratedKey(key, Fate("left", "", f"{speakers[fact].path} takes precedence over it"))
        else:
            yield MigratedKey(key, draft.fates.get(fact, Fate("left", "", form.reason(key))))
