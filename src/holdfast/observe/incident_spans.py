"""Incidents of a run as OpenTelemetry traces: one trace each, one span per part of what it cost.

The SDK comes with `holdfast[otel]`. An incident is sent once, when all workers are back, or when
the run has ended.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.observe.run.incidents import Incident
from holdfast.observe.run.model import RunModel

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ORDER = ("detection", "planning", "groups", "loading", "lost work")
"""Of the parts of a stall, as they follow each other; others come last."""


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)


class IncidentExporter:
    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("holdfast")
        self._sent: dict[int, None] = {}

    def export(self, run: RunModel) -> int:
        """Send what is settled and was not sent; how many."""
        ended = run.ended is not None
        new = [
            incident
            for incident in run.incidents
            if incident.number not in self._sent and (ended or incident.whole_s is not None)
        ]
        for incident in new:
            self._sent[incident.number] = None
            self._send(incident, run)
        return len(new)

    def _send(self, incident: Incident, run: RunModel) -> None:
        from opentelemetry import trace

        lost_s = sum(incident.costs_s.values())
        over_s = incident.over_s if incident.over_s is not None else run.now_s
        start_s = min(incident.at_s, over_s - lost_s)
        root = self._tracer.start_span(
            incident.title, start_time=_ns(start_s), attributes=_attributes(incident, run)
        )
        context = trace.set_span_in_context(root)
        root.add_event("seen", {"workers": [lost.worker for lost in incident.lost]})
        for decision in incident.decisions:
            root.add_event("decided", {"reason": decision}, timestamp=_ns(incident.at_s))
        at_s = over_s - lost_s
        for cause in sorted(incident.costs_s, key=_place):
            seconds = incident.costs_s[cause]
            span = self._tracer.start_span(cause, context=context, start_time=_ns(at_s))
            at_s += seconds
            span.end(_ns(at_s))
        root.end(_ns(max(over_s, incident.whole_s or over_s)))

    def close(self) -> None:
        """Everything that was exported has been sent."""
        self._provider.shutdown()


def _place(cause: str) -> int:
    return ORDER.index(cause) if cause in ORDER else len(ORDER)


def _attributes(incident: Incident, run: RunModel) -> Mapping[str, str | int | float | list[str]]:
    return {
        "holdfast.job": run.started.name if run.started is not None else "",
        "holdfast.run_dir": run.started.run_dir if run.started is not None else "",
        "holdfast.incident": incident.number,
        "holdfast.step": incident.step,
        "holdfast.kind": incident.kind,
        "holdfast.lost": [f"{lost.worker}: {lost.reason}" for lost in incident.lost],
        "holdfast.stall_s": incident.stall_s,
        "holdfast.micro_batches": incident.micro_batches,
        "holdfast.steps_redone": incident.steps_redone,
        "holdfast.plan_before": incident.shape_before,
        "holdfast.plan": incident.shape,
    }


def open_exporter(endpoint: str) -> IncidentExporter:
    """Sends to a collector, by OTLP over HTTP, on a thread of its own."""
    if not endpoint.startswith(("http://", "https://")):
        raise HoldfastError(
            f"{endpoint!r} is no address; give it like http://127.0.0.1:4318/v1/traces"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise HoldfastError(f"traces need {error.name}: install holdfast[otel]") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "holdfast"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return IncidentExporter(provider)
