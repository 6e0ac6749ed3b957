"""Tests which URLs may be connected to, by what their names resolve to, and that nothing else is."""

import socket
from ipaddress import ip_address

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network import endpoint as module
from nemo_vfm.core.network.endpoint import Endpoint, EndpointDenied
from nemo_vfm.core.network.ssrf_guard import addresses, service_url, why_not
from tests.support.chat_server import allowed, chat_server, status

METADATA = ["169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fd00:ec2::254",
            "100.100.100.200", "fe80::1", "168.63.129.16", "::a9fe:a9fe", "fd20:ce::254"]  # fmt: skip
PRIVATE = ["127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "fc00::1", "100.64.0.1",
           "::ffff:10.0.0.1", "64:ff9b::7f00:1", "fec0::1", "feff::1"]  # fmt: skip
NOBODY = ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "64:ff9b:1:a9fe:a9:fe00:808:808"]


def says(monkeypatch, *ips):
    """Every name stands for these addresses."""
    looked = []

    def getaddrinfo(host, port, **_):
        looked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return looked


@pytest.mark.parametrize("ip", METADATA + NOBODY)
@pytest.mark.parametrize("allowed", [True, False])
def test_metadata_and_addresses_of_nobody_are_never_connected_to(ip, allowed):
    assert why_not(ip_address(ip), allow_private=allowed)


@pytest.mark.parametrize("ip", PRIVATE)
def test_inward_addresses_are_connected_to_only_where_that_is_allowed(ip):
    assert "allow_private" in why_not(ip_address(ip), allow_private=False)
    assert not why_not(ip_address(ip), allow_private=True)


@pytest.mark.parametrize("ip", ["93.184.216.34", "2606:2800:220:1::1"])
def test_outward_addresses_may_be_connected_to_by_https_only(monkeypatch, ip):
    says(monkeypatch, ip)
    assert addresses(service_url("https://somewhere.test/v1"), allow_private=False) == [ip_address(ip)]
    with pytest.raises(UserError, match="use https"):
        addresses(service_url("http://somewhere.test/v1"), allow_private=True)


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "localhost", "[::1]", "0177.0.0.1"])
def test_other_spellings_of_this_machine_are_this_machine(host):
    with pytest.raises(UserError, match="allow_private"):
        addresses(service_url(f"https://{host}:8000/v1"), allow_private=False)


def test_a_name_with_one_inward_address_is_refused_whole(monkeypatch):
    says(monkeypatch, "93.184.216.34", "169.254.169.254")
    with pytest.raises(UserError, match="credentials"):
        addresses(service_url("https://somewhere.test"), allow_private=False)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://a/", "ftp://a/b", "//a/b", "a/b", "", "http:///v1", "http://a b/", "http://a\n.b",
            "https://ä.test/", "http://a\\b", "unix:///run/x.sock"],
)  # fmt: skip
def test_only_http_and_https_are_services(url):
    with pytest.raises(ValueError, match="not the URL of a service"):
        Endpoint(url=url)


@pytest.mark.parametrize(
    "url", ["https://me:" + "canary-5531@host/v1", "https://host/v1?api_key=canary-5531", "https://host/v1#canary-5531",
            "https://canary-5531@host/v1"],
)  # fmt: skip
def test_a_key_in_the_url_is_refused_and_not_repeated(url):
    with pytest.raises(ValueError, match=r"allow-host HOST=VARIABLE|no address") as caught:
        Endpoint(url=url)
    assert "canary" not in str(caught.value)


def test_a_rebinding_name_is_looked_up_once_and_the_connection_goes_where_it_was_judged(monkeypatch):
    # The second look-up of this name would be inward: it must not happen.
    turns = iter([["93.184.216.34"], ["127.0.0.1"], ["127.0.0.1"]])
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", (ip, port)) for ip in next(turns)]
    )
    tried = []

    def connect(address, timeout):
        tried.append(address)
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(module.EndpointError, match="nobody is there"):
        Endpoint(url="https://rebind.test/v1", permissions=allowed("https://rebind.test")).ask("x", {})
    assert tried == [("93.184.216.34", 443)]


def test_the_key_does_not_follow_a_redirection(monkeypatch):
    monkeypatch.setenv("CANARY_KEY", "canary-5531")
    with chat_server() as target, chat_server() as first:
        first.always = status(307, b"", Location=target.url + "/chat/completions")
        with pytest.raises(EndpointDenied, match="redirects"):
            Endpoint(url=first.url, permissions=allowed(first.url, "CANARY_KEY")).ask("chat/completions", {})
        assert len(first.paths) == 1 and not target.paths
