"""From [emulate] to the devices and links that workers emulate."""

import re
from pathlib import Path
from statistics import median

import msgspec

from holdfast.engine.emulation import Emulation
from holdfast.errors import HoldfastError
from holdfast.plan.profile import Link, Profile, UnitCost, parse_profile
from holdfast.runtime.config.emulate_sections import EmulateSection
from holdfast.runtime.config.job_file import JobConfig
from holdfast.runtime.config.model_source import model_units
from holdfast.runtime.faults.kinds import check_link


def emulation_of(config: JobConfig) -> Emulation | None:
    """None: devices and links are what they are."""
    section, data = config.emulate, config.data
    if not section.is_on:
        return None
    if section.profile and section.unit_ms:
        raise HoldfastError(
            f"emulate.profile = {section.profile!r} and emulate.unit_ms = {section.unit_ms:g} "
            f"contradict each other: leave one out"
        )
    _check_names(section)
    profile = _read(section.profile) if section.profile else _from_model(config)
    return Emulation(
        profile=_with_links(profile, section),
        speed=section.speed,
        link_speed=section.link_speed,
        attention=section.attention,
        noise=section.noise,
        row_tokens=data.seq_len,
        rows=data.rows,
    )


def _check_names(section: EmulateSection) -> None:
    for name in section.speed:
        if not re.fullmatch(r"n\d+(\.g\d+)?", name):
            raise HoldfastError(f"emulate.speed: {name!r} is no worker (n0.g1) or node (n0)")
    for name in section.link_speed:
        try:
            check_link(name)
        except HoldfastError as error:
            raise HoldfastError(f"emulate.link_speed: {error}") from None


def _read(name: str) -> Profile:
    try:
        profile = parse_profile(Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise HoldfastError(f"emulate.profile = {name!r} is not a text file") from None
    except OSError as error:
        raise HoldfastError(f"emulate.profile = {name!r}: {error.strerror}") from None
    except HoldfastError as error:
        raise HoldfastError(f"emulate.profile = {name!r}: {error}") from None
    if profile.worker is not None or not profile.unit:
        raise HoldfastError(
            f"emulate.profile = {name!r} has no times of units: those of a whole worker do not say "
            f"what a unit takes elsewhere"
        )
    return profile


def _from_model(config: JobConfig) -> Profile:
    """In the ratios of the model's own costs."""
    units = model_units(config)
    ordinary = median(unit.forward for unit in units if unit.forward)
    scale = config.emulate.unit_ms / 1000 / ordinary
    costs = {
        unit.name: UnitCost(unit.forward, unit.backward_input, unit.backward_weight).scaled(scale)
        for unit in units
    }
    return Profile(source="emulated", unit=costs)


def _with_links(profile: Profile, section: EmulateSection) -> Profile:
    def link(own: Link) -> Link:
        latency, rate = section.latency_ms / 1000, section.bandwidth_mb_per_s * 1e6
        return Link(latency or own.latency, rate or own.bandwidth)

    return msgspec.structs.replace(
        profile,
        within_node=link(profile.within_node),
        between_nodes=link(profile.between_nodes),
        reduce=link(profile.reduce),
    )
