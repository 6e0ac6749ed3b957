"""Tests which hosts `get` contacts, which redirects it follows, and who receives the token."""

import base64
import datetime
import socket
import ssl
import threading
from contextlib import contextmanager

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.https_proxy import proxy_for
from nemo_vfm.core.network.permission import AllowedHost, Permissions
from nemo_vfm.core.network.ssrf_guard import service_url
from nemo_vfm.core.secret import conceal
from nemo_vfm.models.hub.hub_client import HubClient, HubError, hub_access
from tests.support.model_hub import MODEL, files, status

TOKEN = "hf_canary0123456789"
WEIGHTS = "transformer/model.safetensors"
SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}


@pytest.fixture
def environment(monkeypatch):
    """Nothing about a hub, a proxy or a token."""
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy",
                 "NO_PROXY", "no_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("endpoint", "allowed", "url", "private", "variable"),
    [
        ("", [], "https://huggingface.co:443", False, "HF_TOKEN"),
        ("", ["huggingface.co=MY_KEY"], "https://huggingface.co:443", False, "MY_KEY"),
        ("https://hub.corp/api/mirror/", [], "https://hub.corp:443", True, "HF_TOKEN"),
        ("http://localhost:8080", [], "http://localhost:8080", True, "HF_TOKEN"),
        ("http://127.0.0.1:8080", [], "http://127.0.0.1:8080", True, "HF_TOKEN"),
        ("http://gpu7:8000", ["http://gpu7:8000"], "http://gpu7:8000", True, None),
        ("http://gpu7:8000", ["http://gpu7:8000=MY_KEY"], "http://gpu7:8000", True, "MY_KEY"),
    ],
)  # fmt: skip
def test_the_environment_names_the_hub_and_the_token(environment, endpoint, allowed, url, private, variable):
    environment.setenv("HF_TOKEN", TOKEN)
    environment.setenv("HF_ENDPOINT", endpoint)
    found = hub_access(Permissions.of(*allowed))
    assert (found.url.origin, found.private, found.variable) == (url, private, variable)


def test_the_users_file_can_name_the_token_of_the_hub(environment):
    entry = AllowedHost("https://huggingface.co:443", "MY_KEY", name="hub", url="https://huggingface.co")
    assert hub_access(Permissions((entry,))).variable == "MY_KEY"
    assert hub_access(Permissions()).variable is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HF_ENDPOINT", "http://10.0.0.5", "over http anyone on the path"),
        ("HF_ENDPOINT", "http://hub.example", "over http anyone on the path"),
        ("HF_ENDPOINT", "https://me:canary-pass@hub.example", "holds a user, a password"),
        ("HF_ENDPOINT", "https://hub.example?key=canary-pass", "a query"),
        ("HF_ENDPOINT", "file:///etc", "is not the URL of a service"),
        ("HF_ENDPOINT", "hub.example", "is not the URL of a service"),
        ("HF_HUB_OFFLINE", "1", "HF_HUB_OFFLINE is set"),
        ("HF_HUB_OFFLINE", "true", "HF_HUB_OFFLINE is set"),
    ],
)
def test_an_invalid_or_unpermitted_hub_url_is_refused_with_a_reason(environment, name, value, words):
    environment.setenv(name, value)
    with pytest.raises(UserError, match=words) as caught:
        hub_access(Permissions())
    assert "canary-pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("location", "followed"),
    [
        ("https://cdn.example/x?Signature=a%20b", "https://cdn.example:443"),
        ("/api/models/new/name", "https://huggingface.co:443"),
        ("https://127.0.0.9/x", "https://127.0.0.9:443"),  # its IP address is checked when connecting
        ("http://cdn.example/x", None), ("http://huggingface.co/x", None), ("http://127.0.0.1/x", None),
        ("file:///etc/passwd", None), ("ftp://cdn.example/x", None), ("https://localhost/x", None),
        ("https://gpu7/x", None), ("https://user:pass@cdn.example/x", None), ("//cdn.example:99999/x", None),
        ("https://cdn.example/\r\nX: y", None), ("https://c\u00e4n.example/", None), ("", None),
        ("https:///x", "https://huggingface.co:443"),
        (None, None), ("https://cdn.example/" + "x" * 9000, None), ("javascript:alert(1)", None),
        ("http://gpu7:8000/x", "http://gpu7:8000"),
    ],
)  # fmt: skip
def test_a_redirect_is_followed_only_to_public_https_or_to_allowed_hosts(environment, location, followed):
    access = hub_access(Permissions.of("http://gpu7:8000"))
    if followed is None:
        with pytest.raises(DataError, match="redirects"):
            access.follow_redirect(access.url, location)
        return
    found = access.follow_redirect(access.url, location)
    assert found.origin == followed and access.may_be_private(found) == (found.host == "gpu7")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("file:///etc/passwd", "is not the URL of a host"), ("http://8.8.8.8/x", "it is not https to a public host"),
        ("https://169.254.169.254/latest/meta-data", "metadata service"), ("https://10.0.0.1/x", "inside this network"),
        ("https://127.0.0.1:1/x", "inside this network"), ("http://127.0.0.1:1/x", "--allow-host http://127.0.0.1:1"),
        ("https://[::ffff:169.254.169.254]/x", "metadata service"), ("https://0x7f.1/x", "inside this network"),
    ],
)  # fmt: skip
def test_a_redirect_into_the_local_network_is_not_followed(hub, download, location, words):
    hub.always["hub:" + WEIGHTS] = status(302, Location=location)
    with pytest.raises((DataError, UserError), match=words):
        download.get()
    assert not hub.asked("cdn") and WEIGHTS not in download.files()


def test_a_cdn_on_the_local_network_must_be_allowed(hub, download):
    with pytest.raises(DataError, match=f"add --allow-host {hub.cdn_url}"):
        download.get(allowed=())
    assert not hub.asked("cdn")


def test_circular_redirects_are_given_up(hub, download):
    hub.always["/revision/main"] = lambda handler: handler.send(307, b"", Location=handler.path)
    with pytest.raises(DataError, match="redirects more than 5 times"):
        download.get()
    assert len(hub.requests) == 6


def test_only_the_hub_receives_the_token(hub, download, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.token = TOKEN
    download.get()
    assert download.files() == SAFE
    with_token = {one.partition(" ")[0] for one, sent in zip(hub.requests, hub.headers, strict=True)
                  if TOKEN in str(sent)}  # fmt: skip
    assert with_token == {"hub"} and hub.asked("cdn")
    assert TOKEN not in (download.folder / "get.json").read_text() and conceal(TOKEN) == "***"


def test_a_redirect_back_to_the_hub_does_not_carry_the_token(hub, download, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.always["cdn:" + WEIGHTS] = status(302, Location=f"{hub.url}/secret")
    hub.always["hub:/secret"] = status(500)
    with pytest.raises(HubError):
        download.get()
    back = [sent for one, sent in zip(hub.requests, hub.headers, strict=True) if one.endswith("/secret")]
    assert back and not any("Authorization" in sent for sent in back)


def test_a_gated_model_explains_how_to_get_access(hub, download, monkeypatch):
    hub.token = TOKEN
    with pytest.raises(UserError, match=r"answered 401 GatedRepo.*accept them on its page and set HF_TOKEN"):
        download.get()
    monkeypatch.setenv("HF_TOKEN", "hf_another987654321")
    with pytest.raises(UserError, match="the token in HF_TOKEN may not read this model") as caught:
        download.get()
    assert "hf_another987654321" not in f"{caught.value!r}"


def test_an_invalid_token_is_reported_without_its_value(hub, download, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "two\nlines")
    with pytest.raises(UserError, match="the variable HF_TOKEN") as caught:
        download.get()
    assert "lines" not in str(caught.value) and not hub.requests


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HTTPS_PROXY": "http://me:canary%40pass@proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "proxy.example"}, ("proxy.example", 80)), ({"ALL_PROXY": "http://p:1"}, ("p", 1)),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "hub.example"}, None),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, None), ({}, None),
    ],
)  # fmt: skip
def test_the_environment_names_the_proxy(environment, variables, expected):
    for name, value in variables.items():
        environment.setenv(name, value)
    found = proxy_for(service_url("https://hub.example"))
    assert (None if found is None else (found.host, found.port)) == expected
    assert proxy_for(service_url("http://127.0.0.1:8000")) is None
    assert "canary" not in repr(found)
    assert found is None or not found.authorization or conceal(f"canary@pass {found.authorization}") == "*** Basic ***"


def test_an_unsupported_proxy_is_refused_with_the_expected_form(environment):
    environment.setenv("ALL_PROXY", "socks5://me:canary-pass@p:1")
    with pytest.raises(UserError, match="expected http://HOST:PORT") as caught:
        proxy_for(service_url("https://hub.example"))
    assert "canary-pass" not in str(caught.value)


def test_tls_through_a_proxy_ends_at_the_hub_and_the_proxy_resolves_the_name(environment, tmp_path):
    """The proxy forwards bytes; the hub behind it has a certificate for its own name."""
    certificate(tmp_path, "hub.test")
    environment.setenv("SSL_CERT_FILE", str(tmp_path / "hub.pem"))
    environment.setenv("HF_ENDPOINT", "https://hub.test")
    environment.setenv("HF_TOKEN", TOKEN)
    with proxy(tmp_path, b'{"sha": "x"}') as (port, asked):
        environment.setenv("HTTPS_PROXY", f"http://me:canary-pass@127.0.0.1:{port}")
        client = HubClient(hub_access(Permissions()), timeout_s=5.0, tries=1)
        assert client.json("it", f"/api/models/{MODEL}/revision/main", 100)[0] == {"sha": "x"}
    tunnel, request = asked
    assert tunnel.startswith(b"CONNECT hub.test:443 HTTP/1.1\r\n") and TOKEN.encode() not in tunnel
    assert base64.b64encode(b"me:canary-pass") in tunnel and b"canary-pass" not in request
    assert f"Authorization: Bearer {TOKEN}".encode() in request


def test_an_untrusted_certificate_is_reported_without_retries(environment, tmp_path):
    certificate(tmp_path, "hub.test")
    environment.setenv("HF_ENDPOINT", "https://hub.test")
    with proxy(tmp_path, b"{}") as (port, asked):
        environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(UserError, match=r"certificate is not trusted \(self.signed certificate.*SSL_CERT_FILE"):
            HubClient(hub_access(Permissions()), timeout_s=5.0).json("it", "/x", 100)
    assert len(asked) == 1


def test_a_refusing_proxy_is_reported_with_a_reason(environment, tmp_path):
    environment.setenv("HF_ENDPOINT", "https://hub.test")
    for answer, words in ((b"HTTP/1.1 407 no\r\n\r\n", "requires credentials"),
                          (b"SSH-2.0\r\n\r\n", "is not HTTP"),
                          (b"HTTP/1.1 502 bad\r\n\r\n", "answered 502 for hub.test")):  # fmt: skip
        with proxy(tmp_path, b"", answer) as (port, _):
            environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
            with pytest.raises((UserError, HubError), match=words):
                HubClient(hub_access(Permissions()), timeout_s=5.0, tries=1).json("it", "/x", 100)


def test_a_proxy_is_not_asked_for_private_addresses(environment, tmp_path):
    environment.setenv("HF_ENDPOINT", "https://169.254.169.254")
    with proxy(tmp_path, b"") as (port, asked):
        environment.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(UserError, match="metadata service"):
            HubClient(hub_access(Permissions()), timeout_s=5.0, tries=1).json("it", "/x", 100)
    assert not asked or asked == [b""]


def certificate(folder, name):
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
            .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(key, hashes.SHA256()))  # fmt: skip
    (folder / "hub.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "hub.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))  # fmt: skip


@contextmanager
def proxy(folder, body, answer=b"HTTP/1.1 200 open\r\nVia: x\r\n\r\n"):
    """A proxy for one connection that also plays the hub behind it; yields its port and the requests."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            link, _ = server.accept()
            link.settimeout(10)
            asked.append(_header(link))
            if not asked[0]:
                return
            link.sendall(answer)
            if b" 200 " in answer and (folder / "hub.key").exists():
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(folder / "hub.pem", folder / "hub.key")
                try:
                    link = context.wrap_socket(link, server_side=True)
                except OSError:
                    return  # the client does not trust the certificate
                asked.append(_header(link))
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            link.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], asked
        thread.join(10)


def _header(link):
    data = b""
    while not data.endswith(b"\r\n\r\n") and (byte := link.recv(1)):
        data += byte
    return data
