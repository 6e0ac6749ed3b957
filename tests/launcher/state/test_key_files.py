"""Tests that a snapshot leaves out files that hold keys, and takes those that only seem to."""

import time
from pathlib import Path

import pytest

from launcher.state.snapshot import take, what_it_is
from tests.launcher.state.test_snapshot import git
from tests.support.repository import ROOT

_DRAWN = "aB3xK9mQ2vR7tY5wZ8nL"
_BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj"
PRIVATE = f"-----BEGIN RSA PRIVATE KEY-----\n{_BODY}\n-----END RSA PRIVATE KEY-----\n"  # of no use to anybody


@pytest.mark.parametrize("path", [
    ".env", ".env.local", "deploy/prod.env", ".ENV", ".env/x", "a/id_rsa", "id_ed25519", "server.pem", "a/b/tls.key",
    ".netrc", ".git-credentials", "x/.aws/credentials", ".kube/config", "kubeconfig", "team.kubeconfig", ".ssh/config",
    ".docker/config.json", "credentials.json", "key.p12", ".pgpass", ".envrc",
])  # fmt: skip
def test_a_file_that_holds_keys_by_its_name_is_known(path):
    assert what_it_is(path, b"")


@pytest.mark.parametrize(("path", "text"), [
    ("notes.txt", PRIVATE), ("a/deploy", f"x\n  {PRIVATE}"), ("k", PRIVATE.replace("RSA", "OPENSSH")),
    ("gcp.json", f'{{"k": "{PRIVATE}"}}'.replace("\n", "\\n")),
    ("key.asc", f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{_BODY}\n"),
    ("conf.json", f'{{"token": "hf_{_DRAWN}{_DRAWN}"}}'), ("gh.txt", f"ghp_{_DRAWN}{_DRAWN}\n"),
    ("a", f"glpat-{_DRAWN}"), ("s.sh", f"export K=nvapi-{_DRAWN}"),
    ("aws.py", f'KEY = "AKIA{_DRAWN.upper()[:16]}"\n'), ("x.csv", "a,b\n" * 250_000 + f"sk-{_DRAWN}"),
    ("n.ipynb", f'{{"source": ["os.environ[\\"HF_TOKEN\\"] = \'hf_{_DRAWN}\'"]}}'),
    ("url.txt", f"git+https://me:{_DRAWN}@example.org/x\n"), ("docs/setup.md", f"    wandb login local-{'0a' * 20}\n"),
    (".npmrc", "//registry.example.org/:_authToken=abc\n"), (".pypirc", "[pypi]\npassword = pypi-abc\n"),
])  # fmt: skip
def test_a_file_that_holds_keys_by_its_content_is_known(path, text):
    assert what_it_is(path, text.encode())


def test_a_token_that_a_windows_shell_has_written_is_known():
    assert what_it_is("token", f"hf_{_DRAWN}\r\n".encode("utf-16")) == "a Hugging Face token"


def test_a_long_text_is_read_at_once_whatever_it_holds():
    began = time.process_time()
    for piece in ("a", "0f", "://", "eyJ", "://a:bbbbbbbbb", "a.", "-", "hf_ ", "password=", "x://y:z@"):
        what_it_is("config.json", (piece * (1 << 18))[: 1 << 18].encode())
    assert time.process_time() - began < 60  # less than a second; a quadratic search takes an hour


@pytest.mark.parametrize(("path", "text"), [
    ("environment.yml", "x"), ("env.py", "x"), ("tokenizer.json", "x"), ("keys.py", "x"), ("id_rsa.pub", "ssh-rsa A"),
    ("config.json", '{"password": null}'), (".npmrc", "save-exact=true\n"), ("secret.py", "x"), ("monkey.py", "x"),
    ("scan.py", "PATTERN = r'-----BEGIN (RSA )?PRIVATE KEY-----'\n"), ("doc.md", "`-----BEGIN PRIVATE KEY-----`"),
    ("url.py", 'f"https://{user}:{password_of_2}@{host}"'), ("d.md", "postgres://scott:password@host, https://$T:${PASS2word}@h"),
    ("a.py", "def login(user, password=None): connect(password=getpass2())"), ("a.css", ".sk-cubeGridScaleDelay {}"),
    ("b.py", "hf_AutoModelForCausalLanguageModel = 1"), ("c.md", "such as AKIAIOSFODNN7EXAMPLE"),
    ("d", "Bearer {token}"), ("picture.bin", f"\0 hf_{_DRAWN}"), (".gitignore", ".env\n"),
    (".github/workflows/ci.yml", "x"),
])  # fmt: skip
def test_a_file_that_only_speaks_of_keys_is_taken(path, text):
    assert not what_it_is(path, text.encode())


def test_nothing_of_this_repository_would_stay_behind():
    code = take(ROOT) if (ROOT / ".git").exists() else None
    if code is None:
        pytest.skip("this is no checkout")
    assert len(code.files) > 500 and not code.left


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that tracks a key, with another one and a new module beside it."""
    root = tmp_path / "project"
    root.mkdir()
    (root / ".env").write_text("A=b\n")
    (root / "model.py").write_text("x = 1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    (root / "id_rsa").write_text(PRIVATE)
    (root / "new.py").write_text("y = 2\n")
    return root


def test_keys_stay_behind_tracked_or_not_and_what_git_does_not_track_is_known(tree, tmp_path):
    code = take(tree)
    assert list(code.files) == ["model.py", "new.py"] and code.untracked == ("new.py",)
    assert code.left == {".env": "an environment file", "id_rsa": "a private key"}
    assert not code.commit.endswith("+changes")
    code.write(tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["model.py", "new.py"]
