"""What is due for the certificates: each line is a state of the Secret and the step that it needs."""

import pytest

from gpu_orchestrator.apps.webhook.certificates import rotation
from gpu_orchestrator.apps.webhook.certificates.content import Content
from gpu_orchestrator.apps.webhook.certificates.rotation import (
    AddNext,
    DropOld,
    Issued,
    Keep,
    Make,
    Promote,
    Restore,
    Step,
    View,
)
from tests.support.certificates import RULES, content, leaf

A, B, C, D = leaf("a"), leaf("b", ends_s=150.0), leaf("c", ends_s=210.0), leaf("d", ends_s=270.0)
FOREIGN = leaf("f", names=frozenset({"other.system.svc"}), ends_s=150.0)
EARLY = leaf("e", starts_s=40.0, ends_s=150.0)
SETTLED = 5.0


@pytest.mark.parametrize(
    ("found", "settled_s", "now_s", "due"),
    [
        pytest.param(content(A), SETTLED, 0, Keep(60), id="fresh: until two thirds of its life"),
        pytest.param(content(A), SETTLED, 59, Keep(1), id="just before two thirds"),
        pytest.param(content(A), SETTLED, 60, AddNext("it expires in 30 s"), id="at two thirds"),
        pytest.param(content(A), None, 60, AddNext("it expires in 30 s"), id="also if not shown anywhere"),
        pytest.param(content(A), SETTLED, 500, AddNext("it expires in 0 s"), id="after a long outage"),
        pytest.param(content(A, to_come=B), None, 61, Keep(5), id="next one not trusted yet"),
        pytest.param(content(A, to_come=B), 3.0, 61, Keep(2), id="next one trusted, too short"),
        pytest.param(content(A, to_come=B), SETTLED, 61, Promote(), id="next one trusted for long enough"),
        pytest.param(
            content(A, to_come=B), None, 95, Keep(5), id="expired, next one not trusted: still wait"
        ),
        pytest.param(
            content(A, to_come=B), 9.0, 150, AddNext("it has expired"), id="next one expired unused"
        ),
        pytest.param(content(B, A), SETTLED, 70, Keep(20), id="old authority stays until it expires"),
        pytest.param(content(B, A), 1.0, 90, Keep(4), id="old one expired, but just promoted"),
        pytest.param(content(B, A), SETTLED, 90, DropOld((A.authority,)), id="old one expired"),
        pytest.param(content(D, A, B, C), SETTLED, 60, DropOld((A.authority,)), id="too many old ones"),
        pytest.param(content(D, A, B, C), 1.0, 60, Keep(4), id="too many old ones, but just promoted"),
        pytest.param(
            content(FOREIGN), SETTLED, 0, AddNext("it does not name webhook.system.svc"), id="another name"
        ),
        pytest.param(
            content(EARLY),
            SETTLED,
            0,
            AddNext("it is not valid yet by the clock of this replica"),
            id="early",
        ),
        pytest.param(
            content(A, to_come=EARLY),
            SETTLED,
            0,
            AddNext("it is not valid yet by the clock of this replica"),
            id="next one early",
        ),
    ],
)
def test_step_follows_from_secret_and_time(
    found: Content, settled_s: float | None, now_s: float, due: Step | Keep
) -> None:
    assert rotation.decide(View(found, None, settled_s, now_s), RULES) == due


@pytest.mark.parametrize(
    ("kept", "missing_s", "may_others", "due"),
    [
        pytest.param(None, 0.0, False, Make(), id="first start"),
        pytest.param(None, 2.0, True, Keep(3), id="others may restore it"),
        pytest.param(None, SETTLED, True, Make(), id="no other has restored it"),
        pytest.param(content(A), 0.0, True, Restore(), id="deleted while this replica serves"),
    ],
)
def test_missing_secret_is_made_or_restored(
    kept: Content | None, missing_s: float, may_others: bool, due: Step | Keep
) -> None:
    assert rotation.decide(View(None, kept, missing_s, 0.0, may_others), RULES) == due


@pytest.mark.parametrize(
    ("step", "found", "kept", "becomes"),
    [
        pytest.param(Make(), None, None, content(D), id="make"),
        pytest.param(Restore(), None, content(A), content(A, to_come=D), id="restore"),
        pytest.param(Restore(), None, content(B, A), content(B, A, to_come=D), id="restore in a rotation"),
        pytest.param(AddNext(""), content(A), None, content(A, to_come=D), id="add"),
        pytest.param(
            AddNext(""), content(A, to_come=B), None, content(A, to_come=D), id="add in place of one unused"
        ),
        pytest.param(Promote(), content(A, to_come=B), None, content(B, A), id="promote"),
        pytest.param(DropOld((A.authority,)), content(C, A, B), None, content(C, B), id="drop"),
    ],
)
def test_step_changes_the_secret(
    step: Step, found: Content | None, kept: Content | None, becomes: Content
) -> None:
    made = Issued(D) if rotation.needs_leaf(step) else None
    assert rotation.perform(step, View(found, kept, None, 0.0), made) == becomes
