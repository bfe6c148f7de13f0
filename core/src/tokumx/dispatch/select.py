"""The one place where an implementation and its configs are chosen."""

from collections.abc import Sequence

from tokumx.contract import (
    DIRECTIONS,
    CallSpec,
    Config,
    Configs,
    DeviceSpec,
    Direction,
    Implementation,
    OpSpec,
    current_device,
)
from tokumx.dispatch import tuned
from tokumx.dispatch.decision import Decision
from tokumx.errors import UnsupportedError

Preference = None | str | Sequence[str]


def decide(
    op: OpSpec,
    call: CallSpec,
    implementation: Preference = None,
    config: Config | Configs | None = None,
) -> Decision:
    """Chooses for a call; never runs or compiles anything.

    Args:
      implementation: None for the fastest expected one that can run, a name,
        or names in order of preference.
      config: for the chosen implementation; None looks it up. Without a name
        it chooses, too: only implementations of its type are candidates.

    Raises:
      ValueError: an unknown name, or a config of another implementation.
      UnsupportedError: no named implementation can run the call here.
    """
    device = current_device()
    layers = tuned.tables()
    if implementation is None:
        candidates, reasons = _ranked(op, call, device, layers)
        candidates = _with_config(candidates, config)
    else:
        names = [implementation] if isinstance(implementation, str) else implementation
        candidates = [op.implementation(name) for name in names]
        reasons = dict.fromkeys(names, "asked for by name")
        if not candidates:
            raise ValueError(
                f"{op.name}: implementation must name at least one; got []. "
                "Pass None for the fastest one that can run."
            )
    rejected: list[tuple[str, str]] = []
    for candidate in candidates:
        why_not = candidate.unsupported(call, device)
        if why_not is None:
            rejected += _not_taken(op, call, device, candidate, rejected, reasons)
            configs, sources = _resolve(op, call, device, candidate, config, layers)
            return Decision(
                call,
                device,
                candidate.name,
                configs,
                sources,
                reasons[candidate.name],
                tuple(rejected),
            )
        rejected.append((candidate.name, why_not))
    raise UnsupportedError(_refusal(op, call, device, rejected))


def _with_config(
    candidates: Sequence[Implementation], config: Config | Configs | None
) -> Sequence[Implementation]:
    """Those that a given config is for; all of them if it is for none."""
    given = config if isinstance(config, Configs) else Configs(config, config)
    wanted = [c for c in (given.forward, given.backward) if c is not None]
    fitting = [i for i in candidates if all(isinstance(c, i.config) for c in wanted)]
    return fitting or candidates


def _ranked(
    op: OpSpec, call: CallSpec, device: DeviceSpec, layers: Sequence[tuned.TunedTable]
) -> tuple[list[Implementation], dict[str, str]]:
    ranking = list(op.rank(call, device))
    measured = tuned.fastest_measured(layers, call, device)
    reasons = dict(ranking)
    for name, time_us in measured:
        reasons[name] = f"measured {time_us:.1f} us forward"
    order = [n for n, _ in measured] + [n for n, _ in ranking]
    order = list(dict.fromkeys([*order, op.reference.name]))
    reasons.setdefault(op.reference.name, "the reference accepts every valid call")
    return [op.implementation(name) for name in order], reasons


def _not_taken(
    op: OpSpec,
    call: CallSpec,
    device: DeviceSpec,
    taken: Implementation,
    rejected: list[tuple[str, str]],
    reasons: dict[str, str],
) -> list[tuple[str, str]]:
    """Why each implementation that was not even tried was not taken."""
    done = {taken.name, *(name for name, _ in rejected)}
    out = []
    for other in op.implementations:
        if other.name in done:
            continue
        why = other.unsupported(call, device) or (
            f"can run; expected slower: {reasons[other.name]}"
            if other.name in reasons
            else "can run; not asked for"
        )
        out.append((other.name, why))
    return out


def _resolve(
    op: OpSpec,
    call: CallSpec,
    device: DeviceSpec,
    implementation: Implementation,
    config: Config | Configs | None,
    layers: Sequence[tuned.TunedTable],
) -> tuple[Configs, tuple[tuple[Direction, str], ...]]:
    """Both configs, and where each came from."""
    given = config if isinstance(config, Configs) else Configs(config, config)
    chosen: dict[Direction, Config] = {}
    sources: list[tuple[Direction, str]] = []
    for direction in DIRECTIONS:
        asked = given.get(direction)
        if asked is None:
            asked, source = _look_up(call, device, implementation, direction, layers)
        else:
            source = "given by the caller"
            _check_config_type(op, implementation, asked)
        chosen[direction] = asked
        sources.append((direction, source))
    return Configs(**chosen), tuple(sources)


def _look_up(
    call: CallSpec,
    device: DeviceSpec,
    implementation: Implementation,
    direction: Direction,
    layers: Sequence[tuned.TunedTable],
) -> tuple[Config, str]:
    found, note = tuned.find(layers, call, device, implementation.name, direction)
    if found is None:
        config = implementation.heuristic_config(call, device, direction)
        return config, f"heuristic{note}"
    try:
        return implementation.config(**found.record.config), found.source
    except ValueError:
        config = implementation.heuristic_config(call, device, direction)
        return config, f"heuristic; {found.source} has a config of another version"


def _check_config_type(
    op: OpSpec, implementation: Implementation, config: Config
) -> None:
    if not isinstance(config, implementation.config):
        expected = implementation.config
        raise ValueError(
            f"{op.name}: config for {implementation.name} must be "
            f"{expected.__module__}.{expected.__name__}; got "
            f"{type(config).__module__}.{type(config).__name__}. "
            "Pass config=None to have one looked up."
        )


def _refusal(
    op: OpSpec, call: CallSpec, device: DeviceSpec, rejected: list[tuple[str, str]]
) -> str:
    reasons = " ".join(f"{name}: {reason}." for name, reason in rejected)
    arrays = " ".join(f"{name}={spec}" for name, spec in call.arrays)
    return (
        f"{op.name}: no requested implementation can run {arrays} on "
        f"{device.kind}. {reasons} Pass implementation=None to allow "
        f"{op.reference.name}."
    )
