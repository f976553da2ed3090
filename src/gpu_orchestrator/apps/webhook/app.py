"""The routes of the webhook: read a bounded body, decide, answer with JSON, count and time.

Whatever comes in, the answer is an AdmissionReview with the same uid, or 4xx with a sentence. 500 means a
defect of ours; the log then has the traceback.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gpu_orchestrator.api import admissionreview, claims, nesting
from gpu_orchestrator.api.admissionreview import (
    AdmissionRequest,
    AdmissionResponse,
    AnsweredReview,
    AskedReview,
)
from gpu_orchestrator.apps.webhook.metrics import Metrics, ResultName
from gpu_orchestrator.apps.webhook.reviewer import BadReview, Reviewer

LARGEST_BYTES = 3 << 20
"""Of a body. An API server accepts objects of up to 3 MiB and stores none that large."""
DISCARDED_BYTES = 16 << 20
"""Of a larger body, read and dropped before the answer: a client that still sends would miss the answer."""
BODY_S = 10.0

log = structlog.get_logger()

Review = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
Check = Callable[[], str]


@dataclass(frozen=True, slots=True)
class Probes:
    """`unready` returns why no review should come; `is_draining` whether connections should be closed."""

    unready: Check
    is_draining: Callable[[], bool]


class Refused(Exception):
    """The request cannot be answered with a review."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def build(reviewer: Reviewer, metrics: Metrics, probes: Probes) -> Starlette:
    reviews = {"/mutate": reviewer.fill, "/mutate/hide": reviewer.hide, "/validate": reviewer.validate}
    routes = [
        Route(path, _endpoint(path, review, metrics, probes), methods=["POST"])
        for path, review in reviews.items()
    ]
    paths = ", ".join((*reviews, "/healthz", "/readyz"))

    async def unknown(_: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        why = f"no such path; known: {paths}" if status == 404 else "send an AdmissionReview by POST"
        return PlainTextResponse(f"{why}\n", status)

    probes_routes = [
        Route("/healthz", _probe(lambda: ""), methods=["GET"]),
        Route("/readyz", _probe(probes.unready), methods=["GET"]),
    ]
    return Starlette(routes=[*routes, *probes_routes], exception_handlers={404: unknown, 405: unknown})


def _probe(check: Check) -> Callable[[Request], Awaitable[Response]]:
    async def probe(_: Request) -> Response:
        wrong = check()
        return PlainTextResponse(wrong or "ok", 503 if wrong else 200)

    return probe


def _endpoint(
    path: str, review: Review, metrics: Metrics, probes: Probes
) -> Callable[[Request], Awaitable[Response]]:
    now = asyncio.get_running_loop().time

    async def endpoint(request: Request) -> Response:
        began = now()
        response, result = await _answered(request, path, review)
        if probes.is_draining():
            response.headers["connection"] = "close"  # the next request goes to another replica
        metrics.request(path, result, now() - began)
        return response

    return endpoint


async def _answered(request: Request, path: str, review: Review) -> tuple[Response, ResultName]:
    try:
        asked = decode(await _body(request))
        answer = await review(asked)
    except Refused as error:
        return _refusal(error.status, str(error)), "refused"
    except BadReview as error:
        return _refusal(400, str(error)), "refused"
    except ClientDisconnect:
        return _refusal(400, "the connection was closed"), "refused"
    except Exception:
        log.exception("request could not be answered", path=path)
        return PlainTextResponse("an error of the webhook; its log has the details\n", 500), "error"
    _log(path, asked, answer)
    body = msgspec.json.encode(AnsweredReview(answer))
    return Response(body, media_type="application/json"), _result(answer)


def _refusal(status: int, why: str) -> Response:
    # What follows on the connection may be the rest of a body that we did not read.
    return PlainTextResponse(f"{why}\n", status, headers={"connection": "close"})


async def _body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 9 or int(declared) > DISCARDED_BYTES):
        raise _too_large()
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size > DISCARDED_BYTES:
                    raise _too_large()
                if size <= LARGEST_BYTES:
                    parts.append(part)
    except TimeoutError as error:
        raise Refused(408, f"the body did not come within {BODY_S:g} s; send it without a pause") from error
    if size > LARGEST_BYTES:
        raise _too_large()
    return b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"the body is larger than {LARGEST_BYTES} bytes; send a smaller object")


def decode(body: bytes) -> AdmissionRequest:
    """Return the request of an AdmissionReview, or raise `Refused`."""
    try:
        review = msgspec.json.decode(body, type=AskedReview)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Refused(400, f"the body is not an AdmissionReview: {claims.shortened(str(error))}") from error
    if nesting.is_too_deep(body):  # last, because it takes long for what is no JSON
        raise _too_deep()
    if (review.api_version, review.kind) != (admissionreview.API_VERSION, admissionreview.KIND):
        found = f"{claims.shortened(review.api_version)} {claims.shortened(review.kind)}"
        raise Refused(400, f"send an AdmissionReview of {admissionreview.API_VERSION}, not {found!r}")
    if review.request is None or not review.request.uid:
        raise Refused(400, "the AdmissionReview has no request with a uid; send one")
    return review.request


def _too_deep() -> Refused:
    return Refused(400, f"the body is nested deeper than {nesting.DEEPEST} levels; send it flatter")


def _log(path: str, asked: AdmissionRequest, answer: AdmissionResponse) -> None:
    if answer.allowed:
        log.debug("request allowed", path=path, namespace=asked.namespace, name=asked.name)
    else:
        why = answer.status.message if answer.status else ""
        log.info("request denied", path=path, namespace=asked.namespace, name=asked.name, why=why)


def _result(answer: AdmissionResponse) -> ResultName:
    if not answer.allowed:
        return "denied"
    return "patched" if answer.patch else "allowed"
