"""Logs, traces and the registry of metrics: set up once per process, the same for every service."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import structlog
from opentelemetry import context, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.typing import EventDict

from muster.records import TRACEPARENT_CHARACTERS

TRACER = trace.get_tracer("muster")
_PROPAGATOR = TraceContextTextMapPropagator()


def set_up_logging(service: str, level: str) -> None:
    """JSON lines on a pipe, colours on a terminal; other libraries' logs take the same way."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _add_trace,
    ]
    on_terminal = sys.stdout.isatty()
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if on_terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # we log what its failures mean
    for talkative in ("httpx2", "httpcore2"):  # they log whole URLs, which can hold secrets
        logging.getLogger(talkative).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level)),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)


def _add_trace(_logger: object, _method: str, event: EventDict) -> EventDict:
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        event["trace_id"] = f"{span.trace_id:032x}"
    return event


def set_up_tracing(service: str, otlp_endpoint: str | None) -> TracerProvider:
    """Give every span an id; send them to an OTLP collector if there is one."""
    propagate.set_global_textmap(_PROPAGATOR)
    provider = TracerProvider(
        # Without a collector spans have ids, for the logs, and cost little else.
        sampler=ALWAYS_OFF if otlp_endpoint is None else ParentBased(ALWAYS_ON),
        resource=Resource({"service.name": f"muster-{service}", "process.pid": os.getpid()}),
    )
    if otlp_endpoint is not None:
        # Only here: few have a collector, and it is a tenth of what a service loads.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(endpoint=otlp_endpoint.rstrip("/") + "/v1/traces", timeout=5)
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096))
    trace.set_tracer_provider(provider)
    return provider


def current_traceparent() -> str | None:
    """The W3C ``traceparent`` of the span that is running now."""
    of = trace.get_current_span().get_span_context()
    if not of.is_valid:
        return None
    return f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"


@lru_cache(maxsize=1024)
def _context_of(traceparent: str) -> context.Context:
    return _PROPAGATOR.extract({"traceparent": traceparent}, context.Context())


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: str | None = None,
    attributes: Mapping[str, str | int] | None = None,
) -> Iterator[Span]:
    """A span that is current in the block; ``parent`` is a ``traceparent`` from elsewhere.

    In a trace that is not sampled there are no spans: its ids are passed on as they are.
    """
    is_usable = parent is not None and 0 < len(parent) <= TRACEPARENT_CHARACTERS
    base = _context_of(parent) if parent and is_usable else context.get_current()
    above = trace.get_current_span(base)
    if above.get_span_context().is_valid and not above.get_span_context().trace_flags.sampled:
        token = context.attach(base)
        try:
            yield above
        finally:
            context.detach(token)
        return
    opened = TRACER.start_span(name, context=base, kind=kind, attributes=dict(attributes or {}))
    token = context.attach(trace.set_span_in_context(opened, base))
    try:
        yield opened
    except BaseException as error:
        opened.record_exception(error)
        raise
    finally:
        context.detach(token)
        opened.end()
