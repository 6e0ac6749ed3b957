"""Lists recipes with one error in each, by the titles under which docs/reference/messages.md shows what a user sees."""

import sys
from dataclasses import dataclass, field

from nemo_vfm.config import RecipeError, build, check, compose, trust_list
from tests.support.recipe_folder import PARTS, TRUST, Kitchen


@dataclass(frozen=True)
class Wrong:
    """A recipe, changes from the command line, files and links beside it, variables, overlays."""

    text: str | bytes
    changes: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    overlays: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)


W = "_target_: @.Wide\n"
T = "_target_: @.Typed\n"
FLOW = "_target_: nemo_vfm.workflow.Workflow\n"
DEEP = "{a: " * 48 + "<x>" + "}" * 48
STAGES = {"conf/stage/scale.yaml": "# scales\n_target_: '@.Scale'\nby: 2\n",
          "conf/stage/shift.yaml": "# shifts\n_target_: '@.Shift'\n"}  # fmt: skip

#: The common ones, by theme.
COMMON = {
    "Keys": {
        "a key that does not exist": Wrong(W + "conut: 12"),
        "a key of an earlier version": Wrong(
            "defaults: [recipe:diffusion/train_small]\ndata: {shards: a}\nduration: 9 steps\n"
        ),
        "a key of another level": Wrong(W + "stage: {_target_: '@.Scale', by: 2, count: 3}\ncount: 2"),
        "a dotted key": Wrong(W + "size.width: 12"),
        "a key given twice": Wrong("seed: 1\nseed: 2\n" + W),
        "an argument that was not given": Wrong(W + "stage: {_target_: '@.Scale'}"),
        "an argument that the job gives": Wrong(W + "later: {_target_: '@.Both', given: 1, more: 2}"),
        "a word of Hydra's": Wrong(FLOW + "steps: {a: {_target_: '@.Wide', _partial_: true}}"),
        "arguments by position that are no list": Wrong(W + "loose: {_target_: '@.Loose', _args_: 1}"),
        "too many arguments by position": Wrong(W + "loose: {_target_: '@.Loose', _args_: [1, 2]}"),
    },
    "Values": {
        "a value of another kind": Wrong(W + 'count: "28"'),
        "a list where a value belongs": Wrong(W + "count: [28]"),
        "a value where a list belongs": Wrong(W + "pair: 3"),
        "a list of another length": Wrong(W + "pair: [1, 2, 3]"),
        "a word that is not allowed": Wrong(W + "stage: {_target_: '@.Scale', by: 2, mode: exat}"),
        "none of several kinds": Wrong(W + "either: 1.5"),
        "a key that is not allowed": Wrong(T + "by_side: {lfet: 1}"),
        "a key that is not a number": Wrong(T + "by_number: {one: 1.5}"),
        "a number that is a key twice": Wrong(T + "by_number: {1: 0.5, '+1': 2}"),
        "too few values": Wrong(T + "several: [1]"),
        "a duration without its unit": Wrong(W + "duration: 400"),
        "a duration of another unit": Wrong(W + "duration: 3 weeks"),
        "a path from home": Wrong(W + "out: ~/out"),
        "an address where a path is wanted": Wrong(W + "out: s3://bucket/out"),
        "a variable in a text that is sent": Wrong(T + "sent: by ${env:PARTS_NAME}", variables={"PARTS_NAME": "Jo"}),
        "a bucket that you have not allowed": Wrong(T + "copy_to: s3://bucket/out"),
        "a value for you to give": Wrong(W + "out: ???"),
        "what a constructor objects to": Wrong(W + "stage: {_target_: '@.Scale', by: 0}"),
    },
    "Components": {
        "a class that does not exist": Wrong(W + "stage: {_target_: '@.Scael', by: 2}"),
        "a module that does not exist": Wrong(W + "stage: {_target_: nemo_vfm.flow.Workflow}"),
        "a class without its module": Wrong("_target_: Workflow"),
        "a class of another kind": Wrong(W + "stage: {_target_: '@.Quiet'}"),
        "a method that gives something else": Wrong(W + "stage: {_target_: '@.Naming'}"),
        "a method that takes something else": Wrong(W + "stage: {_target_: '@.Reading'}"),
        "a class that is not named": Wrong(W + "stage: {by: 2}"),
        "a name that is not trusted": Wrong("_target_: my_package.Job"),
        "a function of the standard library": Wrong(W + "stage: {_target_: subprocess.run}", trust=("subprocess",)),
        "a protection that only you can give up": Wrong("_target_: '@.Guarded'\nstrict: false"),
        "a file outside that the run writes": Wrong("_target_: '@.Writes'\nfile: ../notes.txt"),
        "a word where a component belongs": Wrong(W + "stage: scal", files=STAGES),
        "one component where several have names": Wrong(W + "stages: {_target_: '@.Shift'}"),
        "a value where several have names": Wrong(W + "stages: 3"),
    },
    "Files and their parts": {
        "an ingredient that does not exist": Wrong("defaults: [{stage: scal}]\n" + W, files=STAGES),
        "an ingredient that is wrong": Wrong("defaults: [{stage: scale}]\n" + W, files={
            "conf/stage/scale.yaml": "# scales\n_target_: '@.Scale'\nyb: 2\n"}),
        "a recipe that does not exist": Wrong(FLOW + "steps: {a: 'recipe:clps.yaml'}", files={"recipes/clips.yaml": W}),
        "a run folder where a recipe belongs": Wrong("_target_: nemo_vfm.workflow.Workflow\nsteps: {a: 'recipe:out'}\n",
                                                     files={"out/recipe.yaml": "_target_: a.B\n"}),
        "another class than that of the recipe below": Wrong("defaults: ['recipe:other.yaml']\n" + W, files={
            "other.yaml": "_target_: '@.Typed'\n"}),
        "an ingredient that builds on a recipe": Wrong("defaults: [{stage: on_recipe}]\n" + W, files={
            "conf/stage/on_recipe.yaml": "defaults: ['recipe:other.yaml']\n"}),
        "files that include one another": Wrong("defaults: [{a: one}]\n" + W, files={
            "conf/a/one.yaml": "defaults: [{a: two}]\n", "conf/a/two.yaml": "defaults: [{a: one}]\n"}),
        "a file that is no recipe": Wrong(FLOW + "steps: {a: 'recipe:.netrc'}", files={".netrc": "login me\n"}),
        "a name that an earlier step does not make": Wrong(
            FLOW + "defaults: [{steps.clips: recipe:curation/clips}, {steps.latents: recipe:curation/encode}]\n"
            "steps: {clips: {source: {path: films}}, latents: {shards: '${run_dir}/clips/shard'}}\n"
        ),
        "a folder outside": Wrong(W + "run_dir: ../runs"),
        "a folder behind a link": Wrong(W + "run_dir: out/a", links={"out": "elsewhere"}),
        "a folder of git's": Wrong(W + "run_dir: .git/hooks"),
    },
    "References": {
        "an address that does not exist": Wrong(W + "name: ${coutn}\ncount: 3"),
        "values that refer to one another": Wrong(W + "name: ${out}\nout: ${name}"),
        "a variable that is not set": Wrong(W + "name: ${env:NOT_EXPORTED}"),
        "another form of reference": Wrong(W + "name: ${now:%Y}"),
        "a part inside a text": Wrong(W + "name: x-${size}\nsize: {width: 3}"),
    },
    "The command line": {
        "no change": Wrong(W, ("count",)),
        "no address": Wrong(W, ("+count=3",)),
        "nothing to remove": Wrong(W + "size: {width: 3}", ("~size.widht",)),
        "one item of a list": Wrong(W + "pair: [1, 2]", ("pair.0=3",)),
        "a list without quotes around it": Wrong(W + "pair: [1, 2]", ("pair=[one",)),
        "an empty mapping over a filled one": Wrong(W + "size: {width: 3}", ("size={}",)),
        "an empty mapping over a component": Wrong(W + "stage: {_target_: '@.Shift'}", ("stage={}",)),
        "something below a value": Wrong(W + "count: 3", ("count.x=3",)),
        "something below a reference": Wrong(W + "size: ${other}", ("size.width=3",)),
        "a choice where there is none": Wrong(W + "size: {_target_: '@.Size', width: 1}", ("size=huge",)),
        "braces that a shell took away": Wrong(W + "size: {_target_: '@.Size', width: 1}", ("size=width:3",)),
        "braces that a shell took away from values": Wrong(W, ("weights=a:1",)),
        "a choice of another slot's": Wrong(W + "stages: {a: {_target_: '@.Shift'}}", ("stages.a=big",), files={
            "conf/a/wide.yaml": "_target_: '@.Quiet'\n"}),
        "a choice that does not exist": Wrong("defaults: [{stage: scale}]\n" + W, ("stage=scal",), files=STAGES),
    },
    "YAML": {
        "not YAML": Wrong(W + "name: one: two"),
        "a number with a zero in front": Wrong(W + "count: 010"),
        "no finite number": Wrong(W + "rate: .inf"),
        "a tag": Wrong(W + "name: !!python/name:os.system"),
        "a merge key": Wrong("base: &base {a: 1}\n" + W + "size: {<<: *base}"),
        "an invisible character": Wrong(W + "name: a\u200bb"),
        "a key that only looks right": Wrong(W + "c\u043eunt: 3"),
    },
}  # fmt: skip
#: The long tail.
RARE = {
    "Values": {
        "text from the environment": Wrong(W + "count: ${env:PARTS_COUNT}", variables={"PARTS_COUNT": "3"}),
        "a path that is too long": Wrong(W + "out: " + "x" * 4097),
        "true where 1 is meant": Wrong(T + "level: true"),
        "a path with a hidden character": Wrong(W + 'out: "a\\u202eb"'),
        "a folder with a hidden character": Wrong(W + 'run_dir: "a\\e[2J"'),
        "a key of a number with a zero in front": Wrong(T + "by_number: {007: 1.5}"),
        "arguments of another kind": Wrong("_target_: '@.Trips'\nhow: argument"),
        "a failure with a secret in it": Wrong("_target_: '@.Trips'\nhow: key\ntext: ${env:PARTS_KEY}",
                                               variables={"PARTS_KEY": "hunter22-abcdef"}),
        "a text that becomes a reference": Wrong(W + "name: '${names.0}{count}'\nnames: [$]"),
        "a value that cannot be written": Wrong("_target_: '@.Unwritable'\ncode: x"),
        "a seed below zero": Wrong(W + "seed: -1"),
        "a seed that is not a number": Wrong(W + "seed: one"),
        "a folder for you to give": Wrong(W + "run_dir: ???"),
        "a folder in nobody's home": Wrong(W + "run_dir: ~nobody-of-that-name/out"),
        "a folder that is a secret": Wrong(W + "run_dir: runs/${env:PARTS_KEY}",
                                           variables={"PARTS_KEY": "hunter22-abcdef"}),
        "a folder of a long name": Wrong(W + "run_dir: " + "x" * 300),
        "a folder that is too deep": Wrong(W + "run_dir: " + "a/" * 51 + "a"),
        "too many by position": Wrong(W + "later: {_target_: '@.Shift'}".replace("Shift", "double")),
    },
    "Components": {
        "a name that is not a name": Wrong(W + "stage: {_target_: [a]}"),
        "a name from the environment": Wrong(W + "stage: {_target_: '${env:PARTS_CLASS}'}",
                                             variables={"PARTS_CLASS": "x"}),
        "a component where anything goes": Wrong(W + "loose: {_target_: '@.Loose', value: {_target_: "
            "lightning.pytorch.callbacks.RichProgressBar, console_kwargs: {a: {_target_: '@.Quiet'}}}}"),
        "a protocol": Wrong(W + "stage: {_target_: '@.Stage'}"),
        "a function that makes a text": Wrong(W + "stage: {_target_: '@.label', text: x}"),
        "a function of Python's": Wrong(W + "stage: {_target_: os.system}"),
        "what a module imported": Wrong(W + "stage: {_target_: '@.partial'}"),
        "an object": Wrong(W + "stage: {_target_: '@.SPARE'}"),
        "a function of ours that may act": Wrong("_target_: nemo_vfm.synth.checks.limited_child.run_python\nsource: x"),
        "a class of ours that acts": Wrong("_target_: nemo_vfm.asking.journal.OpenJournal\npath: x"),
        "a private name": Wrong(W + "stage: {_target_: '@._Hidden'}"),
        "a class made inside a function": Wrong(W + "stage: {_target_: '@.made_inside'}"),
        "code that further files name": Wrong("_target_: nemo_vfm.nemo.experiment.NeMoExperiment"),
        "an absent package": Wrong("_target_: an_absent_package.Painter", trust=("an_absent_package",)),
        "a module that needs an absent package": Wrong("_target_: my_parts.Job", trust=("my_parts",), files={
            "my_parts.py": "import a_package_that_is_absent\n"}),
        "a module that fails": Wrong("_target_: my_parts.Job", trust=("my_parts",), files={
            "my_parts.py": "SIZE = {}['size']\n"}),
        "arguments that cannot be read": Wrong(W + "stage: {_target_: '@.Unreadable'}"),
    },
    "Files": {
        "not a list of defaults": Wrong("defaults: {stage: scale}\n" + W),
        "not a slot and a choice": Wrong("defaults: [_self_]\n" + W),
        "not a slot": Wrong("defaults: [{override /stage: scale}]\n" + W),
        "not a choice": Wrong("defaults: [{stage: 3}]\n" + W),
        "a mapping that is no recipe": Wrong(FLOW + "steps: {a: 'recipe:hosts.yaml'}", files={
            "hosts.yaml": "token: hunter22\n"}),
        "a broken file where a recipe belongs": Wrong(FLOW + "steps: {a: 'recipe:hosts.yaml'}", files={
            "hosts.yaml": "# hosts\nx: token: hunter22\n"}),
        "no file but an address": Wrong(FLOW + "steps: {a: 'recipe:https://x.org/r.yaml'}"),
        "a Python file": Wrong(FLOW + "steps: {a: 'recipe:r.py'}"),
        "a recipe in a list": Wrong(FLOW + "steps: ['recipe:r.yaml']", files={"r.yaml": W}),
        "a recipe under a dotted name": Wrong(FLOW + "steps: {a.b: 'recipe:r.yaml'}", files={"r.yaml": W}),
        "an overlay that does not exist": Wrong(W, overlays=("smoek",), files={
            "conf/overlay/smoke.yaml": "for: a.B\n"}),
        "made-up data where nothing trains": Wrong(W, ("data=mock",)),
        "an overlay with other keys": Wrong(W, overlays=("tiny",), files={"conf/overlay/tiny.yaml": "four: a.B\n"}),
        "an overlay that makes nothing": Wrong(W, overlays=("tiny",), files={
            "conf/overlay/tiny.yaml": "for: a.B\nmade: {a: b}\n"}),
        "an overlay for a node that is no mapping": Wrong(W, overlays=("tiny",), files={
            "conf/overlay/tiny.yaml": "for: a.B\nwhere: c\nset: {a: 1}\n"}),
        "an overlay for nothing": Wrong(W, overlays=("tiny",), files={"conf/overlay/tiny.yaml": "set: {a: 1}\n"}),
        "an overlay that sets nothing": Wrong(W, overlays=("tiny",), files={"conf/overlay/tiny.yaml": "for: a.B\n"}),
        "an overlay that sets a class": Wrong(W, overlays=("tiny",), files={
            "conf/overlay/tiny.yaml": "for: a.B\nset: {_target_: c.D}\n"}),
        "an overlay for several missing arguments": Wrong(W, overlays=("tiny",), files={
            "conf/overlay/tiny.yaml": "for: a.B\nmissing: [a, b]\nset: {a: 1}\n"}),
    },
    "YAML": {
        "an empty file": Wrong(""),
        "no mapping": Wrong("- a\n- b\n"),
        "not UTF-8": Wrong(b"name: \xff\n"),
        "two documents": Wrong("a: 1\n---\nb: 2\n"),
        "a number that is too large": Wrong(W + "rate: 1e400"),
        "a number that is too small": Wrong(W + "rate: 1e-400"),
        "a key without a space behind its colon": Wrong(W + "size: {width:3}"),
        "a number that is too long": Wrong(W + "count: " + "9" * 41),
        "half a character": Wrong(W + 'name: "\\0"'),
        "a key that is not text": Wrong(W + "[a]: 1"),
        "an alias of nothing": Wrong(W + "name: *other"),
    },
    "Limits": {
        "a large file": Wrong("# " + "x" * (1 << 20)),
        "many values": Wrong(W + "names: [" + "a, " * 20_000 + "]"),
        "many aliases": Wrong("x: &x 1\ny: [" + "*x, " * 101 + "]"),
        "deep values": Wrong("a: " + "[" * 60 + "]" * 60),
        "deep references": Wrong("a: " + DEEP.replace("<x>", "'${b}'") + "\nb: {c: {d: {e: 1}}}"),
        "deep includes": Wrong("defaults: [{" + ".".join("a" * 49) + ": x}]\n", files={
            "conf/a/x.yaml": "defaults: [{b.c: x}]\n", "conf/c/x.yaml": "y: 1\n"}),
        "a chain of includes": Wrong("defaults: [{a: n0}]\n", files={
            f"conf/a/n{n}.yaml": f"defaults: [{{a: n{n + 1}}}]\n" for n in range(25)}),
        "many values in all files": Wrong("defaults: [{a: n}, {b.a: n}, {c.a: n}]\n", files={
            "conf/a/n.yaml": "x: [" + "1, " * 18_000 + "]\n"}),
        "many values by reference": Wrong("a: [" + "'${b}', " * 600 + "]\nb: [" + "1, " * 100 + "]"),
        "a long chain of references": Wrong("\n".join(f"a{n}: ${{a{n + 1}}}" for n in range(32)) + "\na32: 1"),
        "a text that grows": Wrong("a: " + "${b}" * 700 + "\nb: " + "x" * 100),
        "a change that is too long": Wrong(W, ("name=" + "x" * ((1 << 20) + 1),)),
    },
}  # fmt: skip
ALL = {title: wrong for themes in (COMMON, RARE) for titles in themes.values() for title, wrong in titles.items()}


def complaint(kitchen: Kitchen, wrong: Wrong) -> str:
    """What a user is told, by whichever of composing, checking and building objects first."""
    for name, text in (STAGES | wrong.files if "stage" in wrong.files else wrong.files).items():
        kitchen.write(name, text)
    for name, target in wrong.links.items():
        (kitchen.folder / name).symlink_to(target)
    file = kitchen.write("recipe.yaml", "")
    text = wrong.text if isinstance(wrong.text, bytes) else wrong.text.replace("@", PARTS).encode()
    file.write_bytes(text)
    before = list(sys.path)
    sys.path[:0] = [str(kitchen.folder)] if wrong.trust else []
    try:
        trust = (*TRUST, *trust_list(wrong.trust))
        composed = compose(file.name, wrong.changes, overlays=wrong.overlays, trust=trust)
        _ = composed.seed, composed.run_dir
        if problems := check(composed, trust):
            return str(RecipeError(problems))
        return str(build(composed, trust))
    except RecipeError as error:
        return str(error)
    finally:
        sys.path[:] = before
        for name in wrong.trust:
            sys.modules.pop(name, None)
