"""Configuration from kubeconfig files and from a pod; each error is one line that says what to do."""

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_orchestrator.adapters.kube.auth import config, tls
from gpu_orchestrator.adapters.kube.errors import ConfigError
from tests.support.kube_certificates import Authority

AUTHORITY = Authority()


def write(path: Path, *, cluster: Any = None, user: Any = None, context: Any = None, **more: Any) -> Path:
    tree = {
        "current-context": "ctx",
        "clusters": [{"name": "c", "cluster": cluster or {"server": "https://host:6443"}}],
        "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": "ctx", "context": context or {"cluster": "c", "user": "u"}}],
        **more,
    }
    path.write_text(yaml.safe_dump(tree))
    return path


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


async def test_token_server_and_namespace(tmp_path: Path) -> None:
    context = {"cluster": "c", "user": "u", "namespace": "ml"}
    found = config.load(write(tmp_path / "k", context=context))
    assert (found.server, found.namespace) == ("https://host:6443", "ml")
    assert (await found.credentials.current()).authorization == "Bearer t"


async def test_certificates_inline_and_in_files_next_to_the_kubeconfig(tmp_path: Path) -> None:
    pair = AUTHORITY.pair("bob")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pem)
    (tmp_path / "bob.key").write_bytes(pair.key_pem)
    path = write(
        tmp_path / "k",
        cluster={"server": "https://h", "certificate-authority": "ca.crt", "tls-server-name": "kube"},
        user={"client-certificate-data": b64(pair.certificate_pem), "client-key": "bob.key"},
    )
    found = config.load(path)
    identity = await found.credentials.current()
    assert found.trust.server_name == "kube"
    made = tls.context(found.trust, identity.certificate_pem, identity.key_pem)
    assert len(made.get_ca_certs()) == 1


async def test_token_file_is_read_again_after_rotation(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    credentials = config.load(write(tmp_path / "k", user={"tokenFile": "token"})).credentials
    assert (await credentials.current()).token == "one"
    (tmp_path / "token").write_text("two\n")
    assert (await credentials.current(renew=True)).token == "two"
    (tmp_path / "token").unlink()
    assert (await credentials.current(renew=True)).token == "two"


def test_impersonation_sends_one_header_per_group(tmp_path: Path) -> None:
    user = {"token": "t", "as": "bob", "as-groups": ["a", "b"]}
    assert config.load(write(tmp_path / "k", user=user)).headers == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text(yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "https://first"}}]}))
    second = write(tmp_path / "second", cluster={"server": "https://second"})
    listed = os.pathsep.join([str(first), str(tmp_path / "absent"), str(second)])
    assert config.load(env={"KUBECONFIG": listed}).server == "https://first"


def test_context_argument_overrides_the_current_context(tmp_path: Path) -> None:
    contexts = [
        {"name": "ctx", "context": {"cluster": "c", "user": "u"}},
        {"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "other"}},
    ]
    assert config.load(write(tmp_path / "k", contexts=contexts), "other").namespace == "other"


def pod(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


async def test_pod_uses_its_service_account(tmp_path: Path) -> None:
    pod(tmp_path, token="t1", ca_crt=AUTHORITY.pem.decode(), namespace="ours")
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = config.in_cluster(env, tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "ours")
    assert (await found.credentials.current()).token == "t1"


def test_proxy_url_is_used(tmp_path: Path) -> None:
    cluster = {"server": "https://h", "proxy-url": "http://proxy:3128"}
    assert config.load(write(tmp_path / "k", cluster=cluster)).proxy == "http://proxy:3128"


PAIR = AUTHORITY.pair("bob")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        pytest.param({"contexts": []}, "has no context 'ctx'; none is defined", id="no contexts"),
        pytest.param(
            {"current-context": "prod"}, "no context 'prod'; known: ctx; pass one", id="unknown context"
        ),
        pytest.param({"current-context": ""}, "no current-context; pass --context", id="no current context"),
        pytest.param({"clusters": []}, "does not define 'c', the cluster of context 'ctx'", id="no cluster"),
        pytest.param({"users": []}, "does not define 'u', the user of context 'ctx'", id="no user"),
        pytest.param({"clusters": 7}, r"is not a valid one: Expected `array.*\$.clusters", id="not a list"),
        *(
            pytest.param({"cluster": {"server": url}}, "it must be a URL such as https://host:6443", id=url)
            for url in (
                "host:6443",
                "https://h:99999",
                "https://h:abc",
                "https://h:0",
                "https://[::1",
                "https://a..b",
                f"https://{'a' * 64}",
                "https://h/ü",
                "https://h\u20ac",
                "https://h /",
            )
        ),
        *(
            pytest.param(
                {"cluster": {"server": "https://h", "tls-server-name": name}},
                f"tls-server-name in .* is '{name}'",
                id=f"name {name}",
            )
            for name in (".h", "a..b")
        ),
        pytest.param(
            {"cluster": {"server": "https://h", "certificate-authority": "no.crt"}},
            "cannot read the certificate-authority file of context .*no.crt: No such file",
            id="no CA file",
        ),
        pytest.param(
            {"cluster": {"server": "https://h", "certificate-authority-data": "?"}},
            "certificate-authority-data of context 'ctx' .* is not base64",
            id="CA not base64",
        ),
        pytest.param(
            {"user": {"client-certificate-data": b64(PAIR.certificate_pem)}},
            "has a client certificate but no client key; add client-key-data",
            id="no key",
        ),
        pytest.param(
            {"user": {"auth-provider": {"name": "gcp"}}}, "use an exec plugin instead", id="provider"
        ),
    ],
)
def test_wrong_kubeconfig_names_the_file(tmp_path: Path, tree: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "k", **tree)
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("a: [", "is not valid YAML at line", id="not YAML"),
        pytest.param("just words", "is not a valid one: Expected", id="not a mapping"),
        pytest.param("", "has no current-context", id="empty"),
    ],
)
def test_not_a_kubeconfig(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "k").write_text(content)
    with pytest.raises(ConfigError, match=message):
        config.load(tmp_path / "k")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        pytest.param({}, "pass --kubeconfig or set KUBECONFIG", id="nothing at all"),
        pytest.param(
            {"KUBECONFIG": "/no/a:/no/b"}, "none of the kubeconfig files exists", id="missing files"
        ),
        pytest.param(
            {"KUBECONFIG": "/no/a"}, "cannot read the kubeconfig /no/a: No such file", id="missing file"
        ),
        pytest.param({"KUBERNETES_SERVICE_HOST": "h"}, "automountServiceAccountToken: true", id="no token"),
    ],
)
def test_nothing_to_load(tmp_path: Path, env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.load(env={"HOME": str(tmp_path), **env})


@pytest.mark.parametrize("port", ["tcp://10.0.0.1:443", "99999"])
def test_invalid_port_in_a_pod_is_refused(tmp_path: Path, port: str) -> None:
    pod(tmp_path, token="t1", ca_crt=AUTHORITY.pem.decode())
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(ConfigError, match=r"KUBERNETES_SERVICE_PORT is .*must be a URL"):
        config.in_cluster(env, tmp_path)


@pytest.mark.parametrize("proxy", ["socks5://proxy", "http://[::1", "http://proxy:99999", "proxy:3128"])
def test_invalid_proxy_is_refused(tmp_path: Path, proxy: str) -> None:
    path = write(tmp_path / "k", cluster={"server": "https://h", "proxy-url": proxy})
    with pytest.raises(ConfigError, match="use an http:// or https:// proxy"):
        config.load(path)


@pytest.mark.parametrize(
    ("trust", "pair", "message"),
    [
        pytest.param(tls.Trust("rubbish"), None, "is not a PEM certificate", id="CA"),
        pytest.param(
            tls.Trust(),
            (PAIR.certificate_pem, AUTHORITY.pair("x").key_pem),
            "do not work together",
            id="pair",
        ),
    ],
)
def test_wrong_certificates(trust: tls.Trust, pair: tuple[bytes, bytes] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tls.context(trust, *(pair or ()))
