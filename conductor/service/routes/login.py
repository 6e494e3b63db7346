"""Logging in from a browser: a token is shown once and a cookie is kept, which no script can read and no other site can send.

What a login may do follows from its token at every request, so a token that is revoked ends its logins within a second.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from conductor.service.access import CALLER, COOKIE, Access, Caller, Served, as_caller, csrf_of
from conductor.service.errors import Refusal
from conductor.service.forms import Body
from conductor.store.tokens import Login

__all__ = ["router"]

router = APIRouter(tags=["access"])


class NoLogin(Refusal):
    """the application that serves this says who calls, so there is no login here"""

    status = 409
    hint = "Log in where the application does it."


class Shown(Body):
    """A token, shown once for a cookie."""

    token: Annotated[str, Field(min_length=1, max_length=200, description="a token of `conductor tokens add`", examples=["cdr_…"])]


@router.post("/v1/login", summary="Log a browser in")
async def login(request: Request, response: Response, served: Served, body: Shown) -> dict[str, Any]:
    """Gives a cookie (HttpOnly, SameSite=Strict) and the word `csrf`, which every change must carry in the header X-Conductor-CSRF."""
    access: Access = request.app.state.access
    if access.by_application:
        raise NoLogin
    token = await access.token(request, body.token)
    secret, lasts = secrets.token_urlsafe(32), int(served.settings.service_login_hours * 3600)
    now = (await access.keyring.ring()).now
    ends = min(now + lasts * 1000, token.expires_at or 2**62)
    await run_in_threadpool(served.engine.store.add_login, secret, Login(token.name, token.digest, ends))
    response.set_cookie(
        COOKIE, secret, max_age=lasts, path=_path(request), httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return _told(as_caller(token), secret)


@router.get("/v1/me", summary="Who the service takes you for")
async def me(request: Request) -> dict[str, Any]:
    """Name, scopes and sessions of the caller; for a browser that is logged in also the word `csrf`, which a reloaded page has lost."""
    return _told(request.scope[CALLER], request.cookies.get(COOKIE))


@router.post("/v1/logout", summary="Log a browser out")
async def logout(request: Request, response: Response, served: Served) -> dict[str, Any]:
    """Ends the login of this cookie, here at once and in other replicas within a second."""
    if secret := request.cookies.get(COOKIE):
        await run_in_threadpool(served.engine.store.drop_login, secret)
        request.app.state.access.keyring.forget_login(secret)
    response.delete_cookie(COOKIE, path=_path(request), httponly=True, samesite="strict")
    return {"logged_in": False}


def _told(caller: Caller, secret: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "actor": caller.actor, "scopes": sorted(caller.scopes), "sessions": None if caller.sessions is None else sorted(caller.sessions),
    }
    return told | ({"csrf": csrf_of(secret)} if secret else {})


def _path(request: Request) -> str:
    return request.scope.get("root_path") or "/"
