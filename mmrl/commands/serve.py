"""`mmrl serve`: rewards for trainers on other machines, behind HTTP."""

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.core.contracts import ConfigError, Reward, Stateful
from mmrl.reporting.loopback import stop_signals
from mmrl.scoring.server import RewardServer, ServerSettings, serving
from mmrl.scoring.standalone import scorer_of

_SHORTEST = 16  # characters of a token
_LOOK = 0.5  # seconds between two looks at whether a signal came


def serve(
    rewards: Sequence[Mapping[str, Any]],
    host: str,
    port: int,
    *,
    settings: ServerSettings,
    token: str | None = None,
    device: str = "cpu",
) -> None:
    """Serves rewards until SIGINT or SIGTERM. Requests under way are answered before it ends.

    Args:
        rewards: sections as in a config; the label of each is the name under which it is served.
        host: a loopback address, or any other with a token. port: 0 is a free one.
    Raises:
        ConfigError: unknown rewards or settings, rewards that learn, a host that needs a token, an address in use.
    """
    if token is None and not _is_loopback(host):
        raise ConfigError(f"--host {host} can be reached from other machines, and needs a token: --token-file FILE")
    scorer = scorer_of(rewards, device=device)
    served = {term.name: term.reward for term in scorer.terms}
    for name, reward in served.items():
        _check_servable(name, reward)
    with stop_signals() as is_over, serving(RewardServer(served, settings, token), host, port) as url:
        print(f"serving {', '.join(served)} at {url}", flush=True)
        while not is_over.wait(_LOOK):
            pass
    print("stopped", flush=True)


def read_token(file: Path | None, variable: str | None) -> str | None:
    """Returns the token of a file, or else of the environment variable; None: there is none.

    Raises ConfigError for a file that cannot be read, and for a token that is short or has other characters than the
    printable ones of ASCII.
    """
    if file is not None:
        try:
            variable = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {file} cannot be read: {error}") from error
    if variable is None:
        return None
    if len(variable) < _SHORTEST or not (variable.isascii() and variable.isprintable() and " " not in variable):
        raise ConfigError(f"a token has at least {_SHORTEST} printable characters of ASCII and no space, got another")
    return variable


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_servable(name: str, reward: Reward) -> None:
    """Raises ConfigError for a reward that learns from the scores of a run, which a server does not see."""
    if isinstance(reward, Stateful) and _has_values(reward.state_dict()):
        raise ConfigError(
            f"reward {name!r} learns from the scores of a run, which a server does not see; serve the reward inside of "
            "it, and wrap `http` in the run's config"
        )


def _has_values(state: Any) -> bool:
    """Returns whether a state holds more than the empty states of inner rewards."""
    return any(map(_has_values, state.values())) if isinstance(state, Mapping) else True
