"""Tests that a stranger's recipe naming the user's files is refused, and that nothing of them is shown."""

import os
import socket

import pytest

SECRETS = {
    ".netrc": "machine host.org\n  login me\n  password hunter22-abc\n",
    "hosts.yml": "host.org:\n  oauth_token: hunter22-abc\n  user: me\n",
    "list.yaml": "- hunter22-abc\n",
    "word.yaml": "hunter22-abc\n",
    "broken.yaml": "token: hunter22-abc: x\n",
    "tagged.yaml": "token: !hunter22-abc x\n",
    "key.yaml": "hunter22-abc é: 1\nhünter22-abc: 2\n",
    "twice.yaml": "hunter22-abc: 1\nhunter22-abc: 2\n",
    "alias.yaml": "token: *hunter22-abc\n",
    "id.json": '{"token": "hunter22-abc"}\n',
    "unicode.yaml": "token: hunter22-abc\u202e\n",
}
WAYS = {
    "a step": "steps: {{a: 'recipe:{0}'}}\n",
    "a default": "defaults: [{{steps.a: 'recipe:{0}'}}]\n",
    "a change": "",
    "an ingredient": "defaults: [{{model: x}}]\n",
    "an overlay": "",
}


@pytest.fixture
def home(tmp_path_factory):
    """A folder of the user's, outside the working directory."""
    folder = tmp_path_factory.mktemp("home")
    for name, text in SECRETS.items():
        (folder / name).write_text(text)
    return folder


def words(kitchen, way, file):
    """The command that makes a recipe take a file."""
    kitchen.write("r.yaml", f"_target_: nemo_vfm.workflow.Workflow\n{WAYS[way].format(file)}")
    for place in ("conf/model", "conf/overlay"):
        (kitchen.folder / place).mkdir(parents=True)
        (kitchen.folder / place / "x.yaml").symlink_to(file)
    return {"a change": [f"steps.a=recipe:{file}"], "an overlay": ["--overlay", "x"]}.get(way, [])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SECRETS)
def test_no_word_of_a_file_that_is_no_recipe_is_shown(kitchen, home, capsys, way, name):
    more = words(kitchen, way, home / name)
    for verb in ("check", "show", "run"):
        assert kitchen.main(verb, "r.yaml", *more) == 2
        shown = "".join(capsys.readouterr())
        assert "hunter22" not in shown and "hünter" not in shown and "login" not in shown
        assert name in shown or "x.yaml" in shown


def test_a_recipe_and_an_ingredient_elsewhere_are_taken_all_the_same(kitchen, home):
    (home / "r.yaml").write_text("_target_: tests.support.parts.Count\nduration: 1 steps\n")
    words(kitchen, "an ingredient", home / "r.yaml")
    kitchen.write("w.yaml", f"_target_: nemo_vfm.workflow.Workflow\nsteps: {{a: 'recipe:{home}/r.yaml'}}\n")
    kitchen.write("i.yaml", "_target_: nemo_vfm.workflow.Workflow\ndefaults: [{steps.model: x}]\n")
    assert kitchen.main("check", "w.yaml") == 0 and kitchen.main("check", "i.yaml") == 0


def test_migrate_refuses_what_is_no_file_and_does_not_wait_for_it(kitchen, capsys):
    os.mkfifo(kitchen.folder / "x.yaml")
    assert kitchen.main("migrate", "x.yaml") == 2
    assert "cannot read x.yaml: not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["r.yaml", "recipes/r.yaml", "conf/model/x.yaml", "conf/overlay/x.yaml", "part.yaml"])
@pytest.mark.parametrize(
    "kind", ["fifo", "socket", "folder", "/dev/zero", "/proc/self/environ", "/dev/tty", "large", "a circle"]
)
def test_what_is_no_file_ends_in_a_sentence_wherever_a_file_is_read(kitchen, capsys, place, kind):
    recipe = "defaults: [{model: x}]\nsteps: {a: 'recipe:part.yaml'}\n_target_: nemo_vfm.workflow.Workflow\n"
    for name in ("r.yaml", "conf/model/x.yaml", "conf/overlay/x.yaml", "part.yaml"):
        kitchen.write(name, recipe if name == "r.yaml" else "_target_: '@.Shift'\n")
    path = kitchen.folder / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            listening.bind(os.path.relpath(path))
        elif kind == "folder":
            path.mkdir()
        elif kind == "large":
            path.write_bytes(b"a: 1\n" * (1 << 18))
        else:
            path.symlink_to(path.name if kind == "a circle" else kind)
        recipe_name = "recipes/r.yaml" if place.startswith("recipes") else "r.yaml"
        for verb in ("check", "show", "run"):
            assert kitchen.main(verb, recipe_name, "--overlay", "x") == 2
        assert kitchen.main("list") == 0
    said = capsys.readouterr()
    assert "Traceback" not in said.err and "PATH=" not in said.out + said.err
