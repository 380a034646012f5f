#!/usr/bin/env python3
"""Shows the dashboards in a browser, without a Grafana: serves the viewer and passes queries on to a Prometheus.

    deploy/grafana/view.py [--prometheus URL] [--listen HOST:PORT]

Prints the page's address and serves it until Ctrl-C. The same page comes from Prometheus itself, at /user/viewer/, if that
is started with --web.user-assets=deploy/grafana.
"""
import argparse
import functools
import http.server
import json
import pathlib
import urllib.error
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent
PREFIX = "/user/"


class Handler(http.server.SimpleHTTPRequestHandler):
    """/user/... is a file of `directory`, /api/v1/... an answer of `prometheus`."""

    def __init__(self, *arguments, prometheus, **keywords):
        self.prometheus = prometheus
        super().__init__(*arguments, **keywords)

    def do_GET(self):
        if self.path.startswith("/api/v1/"):
            self.pass_on()
        elif self.path == "/":
            self.send_response(302)
            self.send_header("Location", f"{PREFIX}viewer/")
            self.end_headers()
        elif self.path.startswith(PREFIX):
            super().do_GET()
        else:
            self.send_error(404)

    def translate_path(self, path):
        return super().translate_path("/" + path.removeprefix(PREFIX))

    def end_headers(self):
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def pass_on(self):
        try:
            with urllib.request.urlopen(self.prometheus + self.path, timeout=120) as response:
                self.answer(response.status, response.headers["Content-Type"], response.read())
        except urllib.error.HTTPError as refusal:  # Says what was wrong with the query.
            self.answer(refusal.code, refusal.headers["Content-Type"], refusal.read())
        except OSError as error:
            message = {"status": "error", "error": f"{self.prometheus}: {getattr(error, 'reason', error)}"}
            self.answer(502, "application/json", json.dumps(message).encode())

    def answer(self, status, content_type, body):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A browser that no longer wants an answer is no event."""


def serve(prometheus, host="127.0.0.1", port=0, folder=FOLDER):
    """The server, bound and not yet running."""
    return Server((host, port), functools.partial(Handler, prometheus=prometheus.rstrip("/"), directory=folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="default http://127.0.0.1:9090")
    parser.add_argument("--listen", default="127.0.0.1:9095", metavar="HOST:PORT", help="default 127.0.0.1:9095; port 0: any that is free")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--listen {options.listen!r} is not HOST:PORT")
    try:
        server = serve(options.prometheus, host, int(port))
    except OSError as error:
        parser.error(f"--listen {options.listen}: {error.strerror}; take another port, or 0")
    print(f"http://{host}:{server.server_address[1]}{PREFIX}viewer/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
