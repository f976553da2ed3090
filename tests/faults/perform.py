"""Does to an exchange what a fault says; without a fault, passes it on untouched.

`struck` comes before the component can notice anything, so a test that saw the effect finds the hit counted.
"""

import asyncio

from aiohttp import web

from tests.faults.exchange import Exchange
from tests.faults.faults import Answer, Call, Cut, Delay, DropAnswer, Fault
from tests.faults.streams import Gone, StreamFault, Struck, gone


async def perform(fault: Fault | None, exchange: Exchange, struck: Struck) -> web.StreamResponse:
    match fault:
        case None:
            return await _pass(exchange)
        case Answer():
            return await _answer(fault, exchange, struck)
        case Cut():
            struck()
            return exchange.cut()
        case DropAnswer():
            return await _drop_answer(exchange, struck)
        case Delay():
            struck()
            await asyncio.sleep(fault.seconds)
            return await perform(fault.then, exchange, _nothing)
        case Call():
            return await _call(fault, exchange, struck)
        case Gone(as_event=False):
            return await _answer(Answer(410, body=gone()), exchange, struck)
        case StreamFault():
            return await _stream(fault, exchange, struck)


async def _pass(exchange: Exchange) -> web.StreamResponse:
    async with exchange.forward() as answer:
        return await exchange.relay(answer)


async def _answer(answer: Answer, exchange: Exchange, struck: Struck) -> web.StreamResponse:
    struck()
    return await exchange.answer(answer)


async def _drop_answer(exchange: Exchange, struck: Struck) -> web.StreamResponse:
    async with exchange.forward():
        struck()
        return exchange.cut()


async def _call(fault: Call, exchange: Exchange, struck: Struck) -> web.StreamResponse:
    match fault.at:
        case "request":
            await _call_back(fault, exchange, struck)
            return await perform(fault.then, exchange, _nothing)
        case "answer":
            async with exchange.forward() as answer:
                await _call_back(fault, exchange, struck)
                return exchange.cut() if fault.then else await exchange.relay(answer)
        case "done":
            response = await perform(fault.then, exchange, _nothing)
            await _call_back(fault, exchange, struck)
            return response


async def _call_back(fault: Call, exchange: Exchange, struck: Struck) -> None:
    await asyncio.to_thread(fault.fn, exchange.call)
    struck()


async def _stream(fault: StreamFault, exchange: Exchange, struck: Struck) -> web.StreamResponse:
    async with exchange.forward(readable=True) as answer:
        if answer.status != 200:
            return await exchange.relay(answer)
        return await exchange.relay_through(fault, answer, struck)


def _nothing() -> None:
    """The trigger has counted this hit already."""
