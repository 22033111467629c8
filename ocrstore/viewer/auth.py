"""Check the token and the Host header of requests and add security headers to responses."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60646c;--paper:#fbfbfa;--line:#e2e2df}
@media(prefers-color-scheme:dark){:root{--ink:#edeef0;--soft:#a4a9b3;--paper:#141619;--line:#2c3036}}
body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--paper);
color:var(--ink);font:16px/1.6 system-ui,sans-serif}main{max-width:34rem;padding:2rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .75rem}p{margin:.5rem 0;color:var(--soft)}
code{font:.875em ui-monospace,monospace;background:var(--line);color:var(--ink);
padding:.15em .4em;border-radius:.3em;overflow-wrap:anywhere}
"""
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


def new_token() -> str:
    """Return a random token of 192 bits."""
    return secrets.token_urlsafe(24)


class Guard:
    """Pass on requests that carry the token: in the first URL, then in a cookie."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, host: str = "127.0.0.1") -> None:
        self._app = app
        self._token = token.encode()
        # browsers send cookies to every port of a host: the port in the name keeps viewers apart
        self._cookie = f"ocrstore_{port}"
        names = ["127.0.0.1", "localhost", f"[{host}]" if ":" in host else host]
        self._hosts = {f"{name}:{port}" for name in names} | set(names if port == 80 else ())
        # a machine that listens on all of its addresses has more names than it knows
        self._any_host = host in ("0.0.0.0", "::")  # only where the user asks for it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with a 403 page that says why."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        answer: ASGIApp = self._app
        cookie = None
        if not self._any_host and headers.get("host", "") not in self._hosts:
            # against DNS rebinding: a foreign name that resolves to this machine
            answer = _refusal(
                "Wrong host name",
                "The viewer does not answer to this name. "
                "Open the address that <code>ocrstore view</code> printed.",
            )
        elif not self._from_here(scope, headers):
            answer = _refusal(
                "This request came from another page",
                "Only the viewer’s own page may send it.",
            )
        else:
            given = _query_token(scope)
            if given is not None and self._is_token(given):
                cookie = f"{self._cookie}={given}; HttpOnly; SameSite=Strict; Path=/"
            elif not any(map(self._is_token, self._cookie_values(headers))):
                answer = _refusal(
                    "The link is incomplete or out of date",
                    "Every start of the viewer makes a new link. Copy the whole address that "
                    "<code>ocrstore view</code> printed in the terminal, up to the end of its "
                    "<code>token=…</code>. If the viewer was stopped, start it again.",
                )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    out.setdefault(name, value)
                out.setdefault("cache-control", "no-store")
                if cookie is not None:
                    out.append("set-cookie", cookie)
            await send(message)

        await answer(scope, receive, send_with_headers)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._token)

    def _cookie_values(self, headers: Headers) -> list[str]:
        """Return every value that the cookie header has under the viewer's name.

        http.cookies stops at the first cookie that it cannot parse, and browsers send the cookies
        of all servers on localhost, whatever is in them. So only the separators are parsed here.
        """
        pairs = (pair.partition("=") for pair in ";".join(headers.getlist("cookie")).split(";"))
        return [value.strip() for name, _, value in pairs if name.strip() == self._cookie]

    def _from_here(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request that changes something has the viewer's own origin."""
        if scope["method"] in ("GET", "HEAD"):
            return True
        origin = headers.get("origin", "")
        hosts = {headers.get("host", "")} if self._any_host else self._hosts
        return origin in {f"http://{host}" for host in hosts}


def _query_token(scope: Scope) -> str | None:
    try:
        query = parse_qs(scope.get("query_string", b"").decode("ascii"), max_num_fields=30)
    except (ValueError, UnicodeDecodeError):
        return None
    given = query.get("token")
    return given[0] if given else None


def _refusal(title: str, text: str) -> Any:
    policy = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title} · ocrstore</title><style>{_STYLE}</style>"
        f"<main><h1>{title}</h1><p>{text}</p></main></html>"
    )
    return HTMLResponse(page, status_code=403, headers={"content-security-policy": policy})
