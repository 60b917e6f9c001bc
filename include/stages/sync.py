"""sync_scripts: eagle3/ as a checked release, and the exported shards, to the GPU host over SSH."""

from __future__ import annotations

import logging
import posixpath

from include.core.files import read_json
from include.remote.files import digests, send_file
from include.remote.release import require_python, sync_release
from include.stages.gpu_host import EAGLE3, GpuHost
from include.stages.work import Report, Work

log = logging.getLogger(__name__)


def run(work: Work) -> Report:
    """Switches `current` to the release of this checkout's eagle3/, and brings every exported shard of the dataset."""
    host = GpuHost.of(work)
    with host.client() as client:
        root = host.root(client)
        python = require_python(client, host.python)
        log.info("GPU host %s, folder %s, Python %s", host.connection.host, root, python)
        release = sync_release(client, root, EAGLE3)
        for change in release.changes:
            log.info("    %s", change)
        log.info("release %s %s, every file checked", release.digest, "sent" if release.sent else "was there")
        data, sent = [], 0
        for manifest in exported(work):
            name = f"{manifest['shard']}-{manifest['sha256'][:12]}.parquet"
            remote = posixpath.join(root, "data", work.spec.name, work.spec.version, name)
            sent += send_file(client, work.shard.export_folder / manifest["file"], remote)
            data.append(remote)
        there = digests(client, data)
    log.info("%d shard(s) on the host, %d sent now", len(there), sent)
    return {
        "release": release.path,
        "release_digest": release.digest,
        "changes": list(release.changes),
        "root": root,
        "python": python,
        "data": data,
        "shards_sent": sent,
    }


def exported(work: Work) -> list[dict[str, str]]:
    """The manifests of all exported shards of this version of the dataset, in the order of the shards."""
    return [read_json(path) for path in sorted(work.shard.export_folder.glob("shard-*.json"))]
