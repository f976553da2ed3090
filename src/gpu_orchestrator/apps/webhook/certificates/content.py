"""What the Secret of certificates holds, as plain values: certificates as PEM text, times as Unix seconds."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that signed one leaf. Its key was thrown away then, so it never signs another
    one, and trusting it for longer than needed does no harm."""

    pem: str
    ends_s: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """A serving certificate, its key, and the authority that signed it."""

    pem: str
    key_pem: str = field(repr=False)
    authority: Authority
    names: frozenset[str]
    starts_s: float
    ends_s: float


@dataclass(frozen=True, slots=True)
class Content:
    """`serving` is what every replica serves with, `next` what it will serve with once the API servers trust
    its authority. Both have their authority among `authorities`."""

    serving: Leaf
    authorities: tuple[Authority, ...]
    next: Leaf | None = None

    @property
    def bundle(self) -> str:
        """Return what the API servers have to trust."""
        return "".join(each.pem for each in self.authorities)

    @property
    def old(self) -> tuple[Authority, ...]:
        """Return the authorities that only replicas need which have not seen the newest certificate yet."""
        used = {leaf.authority for leaf in (self.serving, self.next) if leaf}
        return tuple(each for each in self.authorities if each not in used)
