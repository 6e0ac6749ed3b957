"""Decides which hub to contact, which redirects to follow, and which host receives the token."""

import os
import re
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.permission import Allowed, Permissions
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, service_url
from nemo_vfm.core.secret import key_of

#: The usual environment variables: the hub's URL, the token, and offline mode.
ENDPOINT, TOKEN, OFFLINE = "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"
_DEFAULT = "https://huggingface.co"
_LONGEST_URL = 8192


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The network access that the user grants `nemo-vfm get`."""

    url: ServiceUrl  #: of the hub
    private: bool = False  #: whether the hub may be on this machine or its local network
    variable: str | None = None  #: environment variable that holds the token; None sends no token
    #: further hosts, from options and the user's endpoints file
    permissions: Permissions = field(default_factory=Permissions)

    def token(self) -> str | None:
        """Return the token. Only the hub's own host receives it, and output conceals it.

        Raises:
            UserError: the variable holds no valid token.
        """
        try:
            return None if self.variable is None else key_of(self.variable)
        except ValueError as error:
            raise UserError(str(error)) from None

    def may_be_private(self, url: ServiceUrl) -> bool:
        """Return whether the hub or a redirect target may be on this machine or its local network."""
        if url.origin == self.url.origin:
            return self.private
        return any(one.private for one in self._allowed(url))

    def redirected(self, url: ServiceUrl, location: str | None) -> ServiceUrl:
        """Return the target of a redirect.

        Args:
            url: the URL that redirects.
            location: the Location header.
        """
        if not location or len(location) > _LONGEST_URL:
            raise DataError(f"{url.origin} redirects without a valid Location header")
        try:
            target = _url_of(urljoin(f"{url.origin}{url.path}", location))
        except ValueError:
            raise DataError(f"{url.origin} redirects to something that is not the URL of a host; it was not "
                            "followed") from None  # fmt: skip
        if target.origin != self.url.origin and not self._allowed(target):
            _require_public(url, target)
        return target

    def _allowed(self, url: ServiceUrl) -> list[Allowed]:
        return [one for one in self.permissions.allowed if one.place == url.origin]


def hub_access(permissions: Permissions) -> HubAccess:
    """Return access to the hub that the environment names, or to the default hub.

    Raises:
        UserError: offline mode is on, or the URL is invalid or needs permission.
    """
    if os.environ.get(OFFLINE, "").strip().upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{OFFLINE} is set, so nothing is downloaded; unset it to download a model")
    endpoint = os.environ.get(ENDPOINT, "").strip()
    try:
        url = service_url(endpoint or _DEFAULT)
    except ValueError as error:
        raise UserError(f"{ENDPOINT}: {error}") from None
    if url.query:
        raise UserError(
            f"{ENDPOINT}: the URL of a hub must not have a query; expected https://HOST or https://HOST/PATH"
        )
    entry = next((one for one in permissions.allowed if one.place == url.origin), None)
    is_loopback = _is_loopback(url.host)
    if url.scheme == "http" and not is_loopback and entry is None:
        raise UserError(f"{ENDPOINT} names {url.origin}, but over http anyone on the path can alter the data: use "
                        f"https, or add --allow-host {url.origin} if it is in your network")  # fmt: skip
    return HubAccess(url, bool(endpoint) or (entry is not None and entry.private), _variable(url, entry, is_loopback),
                     permissions)  # fmt: skip


def _variable(url: ServiceUrl, entry: Allowed | None, is_loopback: bool) -> str | None:
    """Return the variable that the user names for this host, else HF_TOKEN if the connection keeps it secret."""
    if entry is not None and entry.variable is not None:
        return entry.variable
    return TOKEN if os.environ.get(TOKEN, "").strip() and (url.scheme == "https" or is_loopback) else None


def _url_of(text: str) -> ServiceUrl:
    """Parse a URL with any query, as signed links have; raise ValueError if it is not a URL."""
    parts = urlsplit(text)
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError("a URL must not contain these characters")
    found = service_url(f"{parts.scheme}://{parts.netloc}")
    return replace(found, path=parts.path or "/", query=parts.query)


def _require_public(url: ServiceUrl, target: ServiceUrl) -> None:
    """Refuse a host that is not public https; its IP address is checked when connecting."""
    is_short = "." not in target.host and ":" not in target.host
    if target.scheme != "https" or is_short:
        raise DataError(f"{url.origin} redirects to {target.origin}, which was not followed because it is not https "
                        f"to a public host; if you trust it, add --allow-host {target.origin}")  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
