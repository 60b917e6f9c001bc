"""docker-compose.yaml, held against the official Compose schema and against what this project needs of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
AIRFLOW_SERVICES = {"init", "api-server", "scheduler", "dag-processor", "triggerer", "worker"}
LONG_RUNNING = AIRFLOW_SERVICES - {"init"}
VARIABLE = re.compile(r"(?<!\$)\$\{?([A-Z][A-Z0-9_]*)(:\?[^}]+)?\}?")
Compose = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> Compose:
    """The file as Compose reads it: anchors and merges resolved."""
    return dict(yaml.safe_load((ROOT / "docker-compose.yaml").read_text()))


def strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of every string in the file, extension fields left out."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not str(key).startswith("x-"):
                yield from strings(part, f"{path}/{key}")
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from strings(part, f"{path}/{index}")
    elif isinstance(value, str):
        yield path, value


def faults(compose: Compose) -> list[str]:
    """Everything that is wrong with the file, one sentence each; empty for the real one."""
    found = [f"schema: {error.json_path}: {error.message}" for error in schema_errors(compose)]
    if found:
        return found
    for check in (services, health, shared, secrets, variables, paths):
        found += check(compose)
    return found


def schema_errors(compose: Compose) -> list[jsonschema.ValidationError]:
    """Against the Compose specification's own schema, as check-jsonschema ships it."""
    vendored = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    validator = jsonschema.validators.validator_for(schema := json.loads(vendored.read_text()))
    return list(validator(schema).iter_errors(compose))


def services(compose: Compose) -> list[str]:
    """CeleryExecutor's parts are all there, and each component has the command that makes it one."""
    there = compose["services"]
    found = [
        f"there is no service {name}" for name in (AIRFLOW_SERVICES | {"postgres", "redis"}) - set(there)
    ]
    commands = {"worker": "celery worker"} | {name: name for name in LONG_RUNNING - {"worker"}}
    for name, command in commands.items():
        if there.get(name, {}).get("command") != command:
            found.append(f"{name} doesn't run `airflow {command}`")
    if "airflow db migrate" not in str(there.get("init", {}).get("command")):
        found.append("init doesn't migrate the database")
    return found


def health(compose: Compose) -> list[str]:
    """Everything that stays up says whether it is well; nothing waits for a service that can't say it."""
    there = compose["services"]
    silent = [
        n
        for n in LONG_RUNNING | {"postgres", "redis"}
        if "test" not in there.get(n, {}).get("healthcheck", {})
    ]
    found = [f"{name} has no healthcheck" for name in silent]
    for name in LONG_RUNNING:
        waits = {on: how["condition"] for on, how in there.get(name, {}).get("depends_on", {}).items()}
        expected = {
            "init": "service_completed_successfully",
            "postgres": "service_healthy",
            "redis": "service_healthy",
        }
        if not expected.items() <= waits.items():
            found.append(f"{name} doesn't wait for init, postgres and redis")
    return found


def shared(compose: Compose) -> list[str]:
    """All Airflow services share image (dags, plugins and include are in it), user, folders, settings."""
    there, found = compose["services"], []
    reference = there["api-server"]
    for name in AIRFLOW_SERVICES & set(there):
        other = [
            key for key in ("image", "build", "user", "volumes") if there[name].get(key) != reference.get(key)
        ]
        given = there[name]["environment"]
        other += [key for key, value in reference["environment"].items() if given.get(key) != value]
        found += [f"{name} and api-server differ in {key}" for key in other]
        if str(there[name].get("user", "root")).split(":")[0] in ("root", "0"):
            found.append(f"{name} runs as root")
        mounted = [volume["target"] for volume in there[name]["volumes"]]
        found += [
            f"{name} hides the image's {at}" for at in mounted if re.match(r"/opt/airflow(?!/logs)", at)
        ]
    return found


def secrets(compose: Compose) -> list[str]:
    """No secret is in the file: values come from files, and a password in an address from a command."""
    found = []
    for path, text in strings(compose["services"]):
        key = path.rsplit("/", 1)[-1]
        if re.search(r"PASSWORD|SECRET_KEY|JWT_SECRET|FERNET_KEY", key) and "/run/secrets/" not in text:
            found.append(f"{path} holds a literal secret")
        if re.search(r"://[^/@\s%]*:[^%@\s]+@", text):
            found.append(f"{path} holds a literal password in an address")
    for name, secret in compose.get("secrets", {}).items():
        if not str(secret.get("file", "")).startswith("${EAGLE3_SECRETS_DIR:?"):
            found.append(f"secret {name} doesn't come from the secrets folder")
    for name, service in compose["services"].items():
        granted = set(service.get("secrets", []))
        used = set(re.findall(r"/run/secrets/([\w.]+)", json.dumps(service)))
        if missing := used - granted:
            found.append(f"{name} reads {', '.join(sorted(missing))} but isn't given it")
        if unknown := granted - set(compose.get("secrets", {})):
            found.append(f"{name} is given {', '.join(sorted(unknown))}, which isn't declared")
    return found


def variables(compose: Compose) -> list[str]:
    """Each variable is required with a sentence (no defaults) and documented in .env.example."""
    documented = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    found, used = [], set()
    for path, text in strings(compose):
        for name, required in VARIABLE.findall(text.replace("$$", "")):
            used.add(name)
            if not required:
                found.append(f"{path}: {name} isn't required with a sentence")
    found += [f"{name} isn't in .env.example" for name in sorted(used - set(documented))]
    found += [f"{name} in .env.example isn't used" for name in sorted(set(documented) - used)]
    found += [f"{name} has a default in .env.example" for name, value in documented.items() if value.strip()]
    return found


def paths(compose: Compose) -> list[str]:
    """Folders of the host come from the environment or are in the checkout; named volumes are declared."""
    found = []
    for name, service in compose["services"].items():
        if (build := service.get("build")) and not (ROOT / build / "Dockerfile").is_file():
            found.append(f"{name} is built from {build}, where there is no Dockerfile")
        for volume in service.get("volumes", []):
            source = volume["source"]
            if volume["type"] == "volume" and source not in compose.get("volumes", {}):
                found.append(f"{name} uses volume {source}, which isn't declared")
            if volume["type"] == "bind" and not source.startswith("${") and not (ROOT / source).exists():
                found.append(f"{name} mounts {source}, which doesn't exist")
    return found


def test_the_real_file_has_no_fault(compose: Compose) -> None:
    assert faults(compose) == []


Break = Callable[[Compose], Any]
BREAKS: dict[str, tuple[Break, str]] = {
    "unknown key": (lambda c: c["services"]["worker"].update(volume=[]), "schema"),
    "bad condition": (
        lambda c: c["services"]["worker"]["depends_on"]["init"].update(condition="service_completed"),
        "schema",
    ),
    "no triggerer": (lambda c: c["services"].pop("triggerer"), "no service triggerer"),
    "no migration": (lambda c: c["services"]["init"].update(command="version"), "init doesn't migrate"),
    "wrong command": (lambda c: c["services"]["dag-processor"].update(command="scheduler"), "doesn't run"),
    "no healthcheck": (
        lambda c: c["services"]["scheduler"].pop("healthcheck"),
        "scheduler has no healthcheck",
    ),
    "starts too early": (lambda c: c["services"]["scheduler"]["depends_on"].pop("init"), "doesn't wait"),
    "other image": (
        lambda c: c["services"]["worker"].update(image="apache/airflow:3.3.1"),
        "differ in image",
    ),
    "other data folder": (
        lambda c: c["services"]["worker"]["environment"].update(EAGLE3_DATA_DIR="/elsewhere"),
        "differ in EAGLE3_DATA_DIR",
    ),
    "root": (lambda c: c["services"]["worker"].update(user="0:0"), "worker runs as root"),
    "dags from the host": (
        lambda c: c["services"]["worker"]["volumes"].append(
            {"type": "bind", "source": "dags", "target": "/opt/airflow/dags"}
        ),
        "hides the image's /opt/airflow/dags",
    ),
    "literal password": (
        lambda c: c["services"]["postgres"]["environment"].update(POSTGRES_PASSWORD="airflow"),
        "literal secret",
    ),
    "password in an address": (
        lambda c: c["services"]["worker"]["environment"].update(
            DB="postgresql://airflow:airflow@postgres/airflow"
        ),
        "literal password in an address",
    ),
    "secret not given": (lambda c: c["services"]["redis"].update(secrets=[]), "redis reads redis_password"),
    "default password": (
        lambda c: c["secrets"]["jwt_secret"].update(file="./jwt_secret"),
        "doesn't come from the secrets folder",
    ),
    "optional variable": (
        lambda c: c["services"]["redis"].update(user="${AIRFLOW_UID:-0}"),
        "AIRFLOW_UID isn't required",
    ),
    "undocumented variable": (
        lambda c: c["services"]["redis"].update(image="redis:${REDIS_VERSION:?Set it}"),
        "REDIS_VERSION isn't in .env.example",
    ),
    "missing folder": (
        lambda c: c["services"]["redis"].update(
            volumes=[{"type": "bind", "source": "redis", "target": "/r"}]
        ),
        "which doesn't exist",
    ),
    "undeclared volume": (lambda c: c["volumes"].pop("logs"), "volume logs, which isn't declared"),
}


@pytest.mark.parametrize(("breaking", "sentence"), BREAKS.values(), ids=BREAKS.keys())
def test_a_broken_copy_is_found(compose: Compose, breaking: Break, sentence: str) -> None:
    broken = json.loads(json.dumps(compose))  # no anchors shared any more: only one service breaks
    breaking(broken)
    assert any(sentence in fault for fault in faults(broken)), faults(broken)


def test_image_and_requirements_name_the_same_airflow() -> None:
    base = re.search(
        r"^FROM apache/airflow:([\d.]+)-python3\.11$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    pinned = re.search(r"^apache-airflow==([\d.]+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert base and pinned
    assert base.group(1) == pinned.group(1)


def test_image_holds_what_airflow_loads_and_the_build_sends_it() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for part in ("dags", "plugins", "include", "eagle3"):
        assert f"COPY --chown=airflow:root {part} /opt/airflow/{part}" in dockerfile
        assert part in sent
        assert (ROOT / part).is_dir()
    for file in re.findall(r"[\w-]+\.txt", dockerfile):
        assert (ROOT / file).is_file()
    assert dockerfile.rstrip().endswith("USER airflow")
