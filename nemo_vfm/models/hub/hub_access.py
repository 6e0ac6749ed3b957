# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Decides which hub is asked, which hosts it may redirect to, and who gets the token."""

import os
import re
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.network.permission import Allowed, Permissions
from nemo_vfm.core.network.secret import key_of
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, service_url

#: The variables of the field: of the hub's address, of the token, and to forbid all traffic.
ENDPOINT, TOKEN, OFFLINE = "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"
_USUAL = "https://huggingface.co"
_LONGEST_URL = 8192


@dataclass(frozen=True, slots=True)
class HubAccess:
    """What the user allows `nemo-vfm get`.

    Args:
        url: of the hub.
        private: whether the hub may be on this machine or in its network.
        variable: of the environment, that holds the token; None sends none.
        permissions: hosts beside the hub's own, from options and the user's file.
    """

    url: ServiceUrl
    private: bool = False
    variable: str | None = None
    permissions: Permissions = field(default_factory=Permissions)

    def token(self) -> str | None:
        """The token, which only the hub's own host gets; it is hidden wherever we write.

        Raises:
            UserError: its variable holds something that is none.
        """
        try:
            return None if self.variable is None else key_of(self.variable)
        except ValueError as error:
            raise UserError(str(error)) from None

    def may_be_private(self, url: ServiceUrl) -> bool:
        """Whether a host of a redirect, or the hub itself, may be on this machine or in its network."""
        if url.origin == self.url.origin:
            return self.private
        return any(one.private for one in self._allowed(url))

    def redirected(self, url: ServiceUrl, location: str | None) -> ServiceUrl:
        """Where a redirect leads.

        Args:
            url: that redirects.
            location: what its answer says.

        Raises:
            DataError: it may not be followed.
        """
        if not location or len(location) > _LONGEST_URL:
            raise DataError(f"{url.origin} redirects without saying where to")
        try:
            target = _url_of(urljoin(f"{url.origin}{url.path}", location))
        except ValueError:
            raise DataError(f"{url.origin} redirects to something that is not the URL of a host; it is not "
                            "followed") from None  # fmt: skip
        if target.origin != self.url.origin and not self._allowed(target):
            _require_outside(url, target)
        return target

    def _allowed(self, url: ServiceUrl) -> list[Allowed]:
        return [one for one in self.permissions.allowed if one.place == url.origin]


def hub_access(permissions: Permissions) -> HubAccess:
    """The hub that the environment names, or the usual one.

    Raises:
        UserError: the environment forbids traffic, or names what is no address of a hub or needs permission.
    """
    if os.environ.get(OFFLINE, "").strip().upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{OFFLINE} is set, so nothing is fetched; unset it to bring a model here")
    named = os.environ.get(ENDPOINT, "").strip()
    try:
        url = service_url(named or _USUAL)
    except ValueError as error:
        raise UserError(f"{ENDPOINT}: {error}") from None
    if url.query:
        raise UserError(f"{ENDPOINT}: the address of a hub has no query; expected https://HOST or https://HOST/PATH")
    entry = next((one for one in permissions.allowed if one.place == url.origin), None)
    inside = _is_loopback(url.host)
    if url.scheme == "http" and not inside and entry is None:
        raise UserError(f"{ENDPOINT} names {url.origin}, and over http anyone on the path can change what is sent: use "
                        f"https, or allow it by --allow-host {url.origin} if it is in your network")  # fmt: skip
    return HubAccess(url, bool(named) or (entry is not None and entry.private), _variable(url, entry, inside),
                     permissions)  # fmt: skip


def _variable(url: ServiceUrl, entry: Allowed | None, inside: bool) -> str | None:
    """The variable that the user names for this host; else the field's, unless others could read it on its way."""
    if entry is not None and entry.variable is not None:
        return entry.variable
    return TOKEN if os.environ.get(TOKEN, "").strip() and (url.scheme == "https" or inside) else None


def _url_of(text: str) -> ServiceUrl:
    """A URL whose query may be anything, as those of signed links are; ValueError where it is none."""
    parts = urlsplit(text)
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise ValueError("characters that no URL has")
    found = service_url(f"{parts.scheme}://{parts.netloc}")
    return replace(found, path=parts.path or "/", query=parts.query)


def _require_outside(url: ServiceUrl, target: ServiceUrl) -> None:
    """A host that nobody named may be followed to where it is public; its addresses are judged when it is reached."""
    is_short = "." not in target.host and ":" not in target.host
    if target.scheme != "https" or is_short:
        raise DataError(f"{url.origin} redirects to {target.origin}, which is not followed: it is not https to a "
                        f"public host; if you trust it, add --allow-host {target.origin}")  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
