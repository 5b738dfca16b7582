"""What figures say about where they come from."""

from __future__ import annotations

from inferscale_server.bench.machine import HIDDEN, command_line, cpu_name, versions


def test_a_processor_is_named_as_the_system_names_it() -> None:
    assert cpu_name(["processor\t: 0", "model name\t: Epyc: 9\n", "model name\t: other"]) == "Epyc: 9"
    assert cpu_name(["Hardware\t: Pi"]) == "Pi"
    assert cpu_name([]) != ""


def test_only_what_is_installed_has_a_version() -> None:
    assert versions(["inferscale-sdk", "no-such-distribution"]).keys() == {"python", "inferscale-sdk"}


def test_a_command_is_told_without_the_programs_folder_and_without_keys() -> None:
    argv = ["/home/ilse/bin/inferscale", "bench", "accuracy", "--api-key", "s1", "--judge-key=s2", "--k", "5"]
    told = ["inferscale", "bench", "accuracy", "--api-key", HIDDEN, f"--judge-key={HIDDEN}", "--k", "5"]
    assert command_line(argv) == told
