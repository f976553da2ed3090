"""Every script includes the functions of `common.lua` that it uses, and no others."""

import re

import pytest

from gpu_orchestrator.adapters.store.valkey.scripts import FOLDER, Script

NAMES = sorted(each.name.removesuffix(".lua") for each in FOLDER.iterdir() if each.name != "common.lua")
DEFINED = re.compile(r"^\s*local (?:function )?([\w, ]+)", re.MULTILINE)
COMMON = set(re.findall(r"\w+", " ".join(DEFINED.findall((FOLDER / "common.lua").read_text()))))


def code_of(name: str) -> str:
    return re.sub(r"--.*", "", Script[None](name, None).source.decode())


@pytest.mark.parametrize("name", NAMES)
def test_called_functions_are_defined(name: str) -> None:
    code = code_of(name)
    defined = set(re.findall(r"\w+", " ".join(DEFINED.findall(code))))
    called = set(re.findall(r"(?<![.\w])(\w+)\(", code)) & COMMON
    assert called <= defined


def test_unused_functions_are_not_sent() -> None:
    assert "local function died" in code_of("finish")
    assert "local function died" not in code_of("submit")
    assert len(code_of("elect")) < len(code_of("finish")) / 3
