"""Several servers are tried in turn, with pauses that grow by rounds."""

from gpu_orchestrator.apps.worker.session.servers import LONGEST_WAIT_S, SHORTEST_WAIT_S, Servers


def test_servers_are_tried_in_turn() -> None:
    servers = Servers(("a", "b", "c"))
    tried = []
    for _ in range(4):
        tried.append(servers.current)
        servers.next()
    assert tried == ["a", "b", "c", "a"]


def test_pause_grows_with_each_round_and_is_short_again_after_success() -> None:
    servers = Servers(("a", "b"))
    waits = [servers.next() for _ in range(20)]
    assert waits[:6] == [0.1, 0.1, 0.2, 0.2, 0.4, 0.4]
    assert waits[-1] == LONGEST_WAIT_S
    servers.joined()
    assert servers.next() == SHORTEST_WAIT_S


def test_worker_is_unwanted_only_if_every_server_refuses_it() -> None:
    servers = Servers(("a", "b"))
    assert not servers.refused("no")
    servers.next()
    assert servers.refused("no")


def test_one_refusal_is_enough_from_a_single_server() -> None:
    assert Servers(("a",)).refused("no")
