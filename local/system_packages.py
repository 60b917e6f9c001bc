"""Debian packages that pip can't bring: only the missing ones, only with the rights that are there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from local.errors import LocalError
from local.steps import run_step, timed


def missing(*, browser: bool) -> list[str]:
    """The Debian packages to install: sshd, venv support, and a browser for the tests that drive one."""
    packages = []
    if not (shutil.which("sshd") or Path("/usr/sbin/sshd").exists()):
        packages.append("openssh-server")
    if importlib.util.find_spec("ensurepip") is None:
        packages.append(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
    if browser and not (shutil.which("chromium") or shutil.which("chromium-browser")):
        packages.append("chromium")
    return packages


def install(cache: Path, *, browser: bool) -> None:
    """Installs what is missing, as root or with sudo; LocalError says the command where that can't be."""
    packages = missing(browser=browser)
    if not packages:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if not shutil.which("apt-get"):
        raise LocalError(
            f"This machine lacks what Debian calls {' and '.join(packages)}. Install it and run this again."
        )
    if os.geteuid() != 0:
        if not shutil.which("sudo"):
            raise LocalError(
                f"{' and '.join(packages)} is missing. Run `{' '.join(command)}` as root, then this again."
            )
        command = ["sudo", *command]
    log = cache / "logs" / "apt.log"
    update = [*command[: command.index("apt-get") + 1], "update"]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with timed(f"system packages ({', '.join(packages)})"):
        # an sshd of the whole machine isn't wanted: the package would start one where an init system runs
        run_step(update, log, env=environ)
        run_step(command, log, env=environ)
