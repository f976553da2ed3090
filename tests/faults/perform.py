"""Apply a fault to an exchange; without a fault, pass it on unchanged.

`on_hit` is called before the component can notice anything, so a test that saw the effect finds the hit
counted.
"""

import asyncio

from aiohttp import web

from tests.faults.exchange import Exchange
from tests.faults.faults import Answer, Call, Cut, Delay, DropAnswer, Fault
from tests.faults.streams import Gone, OnHit, StreamFault, gone


async def perform(fault: Fault | None, exchange: Exchange, on_hit: OnHit) -> web.StreamResponse:
    match fault:
        case None:
            return await _pass(exchange)
        case Answer():
            return await _answer(fault, exchange, on_hit)
        case Cut():
            on_hit()
            return exchange.cut()
        case DropAnswer():
            return await _drop_answer(exchange, on_hit)
        case Delay():
            on_hit()
            await asyncio.sleep(fault.seconds)
            return await perform(fault.then, exchange, _nothing)
        case Call():
            return await _call(fault, exchange, on_hit)
        case Gone(as_event=False):
            return await _answer(Answer(410, body=gone()), exchange, on_hit)
        case StreamFault():
            return await _stream(fault, exchange, on_hit)


async def _pass(exchange: Exchange) -> web.StreamResponse:
    async with exchange.forward() as answer:
        return await exchange.relay(answer)


async def _answer(answer: Answer, exchange: Exchange, on_hit: OnHit) -> web.StreamResponse:
    on_hit()
    return await exchange.answer(answer)


async def _drop_answer(exchange: Exchange, on_hit: OnHit) -> web.StreamResponse:
    async with exchange.forward():
        on_hit()
        return exchange.cut()


async def _call(fault: Call, exchange: Exchange, on_hit: OnHit) -> web.StreamResponse:
    match fault.at:
        case "request":
            await _call_back(fault, exchange, on_hit)
            return await perform(fault.then, exchange, _nothing)
        case "answer":
            async with exchange.forward() as answer:
                await _call_back(fault, exchange, on_hit)
                return exchange.cut() if fault.then else await exchange.relay(answer)
        case "done":
            response = await perform(fault.then, exchange, _nothing)
            await _call_back(fault, exchange, on_hit)
            return response


async def _call_back(fault: Call, exchange: Exchange, on_hit: OnHit) -> None:
    await asyncio.to_thread(fault.fn, exchange.call)
    on_hit()


async def _stream(fault: StreamFault, exchange: Exchange, on_hit: OnHit) -> web.StreamResponse:
    async with exchange.forward(readable=True) as answer:
        if answer.status != 200:
            return await exchange.relay(answer)
        return await exchange.relay_through(fault, answer, on_hit)


def _nothing() -> None:
    """Do nothing: the trigger has counted this hit already."""
