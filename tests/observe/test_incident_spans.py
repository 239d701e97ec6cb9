import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from holdfast.errors import HoldfastError
from holdfast.observe.incident_spans import IncidentExporter, open_exporter
from support.made_runs import MadeRun, disturbed_run

pytest.importorskip("opentelemetry.sdk")


@pytest.fixture
def sent():
    """What arrives, and a provider that sends there."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return memory, provider


def test_an_incident_is_a_trace(sent):
    memory, provider = sent
    run = MadeRun().start().steps(20).lose("n1.g0").steps(3).back("n1.g0").steps(5).model()
    exporter = IncidentExporter(provider)
    assert exporter.export(run) == 1
    assert exporter.export(run) == 0
    spans = memory.get_finished_spans()
    (root,) = [span for span in spans if span.parent is None]
    assert root.name == "n1.g0 lost (killed)"
    assert root.attributes["holdfast.step"] == 20
    assert [event.name for event in root.events].count("decided") == 2
    parts = [span for span in spans if span.parent is not None]
    assert [span.name for span in parts] == ["planning", "groups", "lost work"]
    assert all(span.parent.span_id == root.context.span_id for span in parts)
    lost_s = sum(span.end_time - span.start_time for span in parts) / 1e9
    (incident,) = run.incidents
    assert lost_s == pytest.approx(sum(incident.costs_s.values()), abs=1e-6)
    assert root.start_time <= parts[0].start_time
    assert root.end_time == pytest.approx(1e9 * incident.whole_s, rel=1e-12)


def test_those_under_way_wait(sent):
    memory, provider = sent
    run = MadeRun().start().steps(20).lose("n1.g0").steps(3)
    exporter = IncidentExporter(provider)
    assert exporter.export(run.model()) == 0
    assert exporter.export(run.end().model()) == 1
    assert memory.get_finished_spans()


def test_to_a_collector():
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        exporter = open_exporter(f"http://127.0.0.1:{server.server_port}/v1/traces")
        assert exporter.export(disturbed_run().end().model()) == 3
        exporter.close()
        server.shutdown()
        thread.join()
    assert [path for path, _ in got] == ["/v1/traces"]
    assert b"n1.g0 lost (killed)" in got[0][1]


def test_an_address_that_is_none():
    with pytest.raises(HoldfastError, match="is no address"):
        open_exporter("localhost")
