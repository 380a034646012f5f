#!/usr/bin/env python3
"""Takes docs/images/*.png anew: the dashboards of a small cluster on this machine, after a few minutes of real jobs.

    tests/e2e/screenshots.py [--bin DIR] [--minutes N]

Wants built programs (default build/release/bin), and Debian's prometheus, chromium-headless-shell, pngquant and fonts-inter.
"""
import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
READY = "document.documentElement.dataset.state === 'ready' && !document.querySelector('details.row[open] [data-state=loading]')"
LARGEST = 300 << 10  # Bytes of a picture.


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", metavar="DIR", help="the programs")
    parser.add_argument("--minutes", type=int, default=5, metavar="N", help="how long the jobs run before (default 5)")
    options = parser.parse_args()
    if missing := [program for program in ("prometheus", "pngquant") if not shutil.which(program)]:
        parser.error(f"not installed: {', '.join(missing)}")
    return options


def submit_jobs(cluster, spec):
    """A pipeline that reads two sources, and a data-parallel job beside it."""
    sources = [dict(name=name, weight=weight, train=[str(cluster.text)]) for name, weight in (("books", 3), ("web", 1))]
    shape = dict(architecture="LLAMA", layers=4, hidden=128, heads=4, kv_heads=2, ffn=384, tied_head=True)
    common = dict(steps=100_000, model=shape, data=dict(train=[], sources=sources), checkpoint=dict(every_steps=700),
                  eval=dict(every_steps=40, sequences=8), trace=dict(account_every=10))
    batch = {"global": 16, "sequence_length": 64, "micro": 2}
    pipeline = cluster.submit(spec(cluster.text, name="llama-pipeline", parallel=dict(pipeline=2), batch=batch, **common))
    replicas = cluster.submit(spec(cluster.text, name="llama-replicas", seed=6, batch=batch, **common))
    return pipeline, replicas


def let_run(cluster, spec, jobs, minutes):
    """Until there is enough to see: the whole time, with a short job, a dead rank and one that waits in between."""
    end = time.monotonic() + 60 * minutes
    for job in jobs:
        cluster.wait_step(job, 20, timeout=180)
    time.sleep(0.45 * max(0, end - time.monotonic()))
    os.kill(cluster.rank_pids(jobs[0])[0], signal.SIGKILL)
    cluster.wait_state(cluster.submit(spec(cluster.text, name="short", steps=5, devices=1)), "SUCCEEDED")
    cluster.submit(spec(cluster.text, name="waits", steps=5, devices=4))
    time.sleep(max(0, end - time.monotonic()))


def take_pictures(browser, home, job, minutes):
    for board, scope in (("telar-fleet", {}), ("telar-job", {"var-job_id": job}), ("telar-ranks", {"var-job_id": job})):
        page = browser.page(1400, 900, scale=1.5)
        query = {"board": board, "from": f"now-{minutes}m", "to": "now", "refresh": "", **scope}
        page.open(f"{home}?{urllib.parse.urlencode(query)}")
        page.wait(READY, timeout=60)
        path = IMAGES / f"{board}.png"
        page.screenshot(path)
        subprocess.run(["pngquant", "--force", "--skip-if-larger", "--speed", "1", "--output", path, "128", path], check=False)
        if path.stat().st_size > LARGEST:
            sys.exit(f"{path}: {path.stat().st_size} bytes, more than {LARGEST}")
        print(f"{path}: {path.stat().st_size} bytes")


def main():
    options = parse()
    os.environ["TELAR_BIN_DIR"] = str(options.bin)
    sys.path.insert(0, str(ROOT / "deploy/grafana"))
    import browser
    import cluster as clusters
    import prometheus_selftest
    import view
    with clusters.Cluster(workers={"a": 2, "b": 3}) as cluster, browser.Browser() as chromium:
        folder = cluster.folder / "prometheus"
        folder.mkdir()
        process, url = prometheus_selftest.start_prometheus(folder, cluster.coordinator.addresses["http"].split(":")[1])
        server = view.serve(url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            jobs = submit_jobs(cluster, clusters.spec)
            let_run(cluster, clusters.spec, jobs, options.minutes)
            take_pictures(chromium, f"http://127.0.0.1:{server.server_address[1]}/user/viewer/", jobs[0], options.minutes)
        finally:
            server.shutdown()
            server.server_close()
            process.terminate()
            process.wait(timeout=20)


if __name__ == "__main__":
    main()
